-- In Spark's SQL: the messages of groups whose summaries do not say everything.

-- name: positions
-- The positions of the first and last messages of such groups' parts. Of the larger of two parts of a key, the
-- number of messages is known, and is enough.
SELECT DISTINCT position FROM (
  SELECT explode(array(first_asked, last_asked, other_first_asked, other_last_asked,
                       first_answered, last_answered, other_first_answered, other_last_answered)) AS position
  FROM {open})
WHERE position IS NOT NULL

-- name: scattered
-- Groups with messages at other positions.
SELECT * FROM {open}
WHERE CASE WHEN is_key THEN asking > 2 OR fewest_asked > 2 OR answered > 2 ELSE answering > 2 OR most > 2 END

-- name: range
SELECT min(least(first_asked, first_answered)) AS first, max(greatest(last_asked, last_answered)) AS last
FROM {open}

-- name: incomplete
-- Keys with unread messages, some of which may differ from what the key stands for.
SELECT grp FROM {found}
WHERE is_command
GROUP BY grp, group_asked
HAVING count(*) < group_asked AND bool_or(position = most_asked AND NOT same OR is_discarded)

-- name: of_keys
-- The messages of the keys, with what consumers did with them.
SELECT f.grp, f.position, f.code, f.what, f.digest, f.cause, f.place, f.cardinal, f.what IN (1, 2) AS is_command,
       f.code AS asks, f.position AS first_asked, o.asked AS group_asked, o.most_asked,
       coalesce(m.is_letter, false) AS is_letter, coalesce(m.is_recorded, false) AS is_recorded,
       coalesce(m.is_corrected, false) AS is_corrected, coalesce(m.is_discarded, false) AS is_discarded,
       coalesce(c.is_corrected, false) AS follows_corrected
FROM (SELECT *, $group AS grp, code % 16 AS what FROM {facts} WHERE code % 16 IN (1, 2, 3, 4, 8)) f
JOIN {open} o ON f.grp = o.grp
LEFT JOIN {letter_states} m ON m.position = f.position
LEFT JOIN {letter_states} c ON c.position = f.cause

-- name: referred
-- What the key stands for: its first reservation; the command that the start of its stream follows; or the first.
SELECT *, first.what = 8 AS is_started, first.follows_corrected AS start_follows_corrected,
       CASE WHEN first.what = 8 THEN first.cause ELSE first.position END AS referred,
       CASE WHEN first.what = 8
            THEN max(CASE WHEN is_command AND position = first.cause THEN says END) OVER (PARTITION BY grp)
            ELSE first.says END AS meant
FROM (
  SELECT *, $was_read AS was_read, $records_conflicts AS records_conflicts,
         first_value(struct(what, position, says, cause, follows_corrected))
           OVER (PARTITION BY grp ORDER BY is_command, CASE WHEN is_command THEN 0L ELSE place END, position) AS first,
         max(is_corrected) OVER (PARTITION BY grp) AS group_corrected,
         row_number() OVER (PARTITION BY grp, is_command ORDER BY place, position) AS nth
  FROM {rows})

-- name: differing
SELECT DISTINCT position, referred FROM {referred} WHERE is_command AND NOT coalesce(says = meant, false)

-- name: same
SELECT r.*, coalesce(r.says = r.meant, false) OR coalesce(size(c.differences) = 0, false) AS same, c.differences
FROM {referred} r
LEFT JOIN {compared} c ON c.position = r.position AND c.referred = r.referred

-- name: found
-- Findings of single messages, besides those of their groups.
SELECT *, is_command AND NOT same AS is_conflict,
       is_command AND was_read AND NOT group_corrected
         AND CASE WHEN is_recorded THEN same ELSE NOT same AND records_conflicts AND NOT is_letter END AS is_mismatch
FROM {same}

-- name: groups
-- The columns of a summary, from what the messages themselves say. If the first command was discarded, and the
-- consumer has read a later one that is no letter, the later one stands for the key.
SELECT true AS is_key, grp,
       max(group_asked) AS asked, min(CASE WHEN is_command AND stands THEN position END) AS first_asked,
       max(CASE WHEN is_command THEN position END) AS last_asked,
       max(CASE WHEN is_command THEN code END) AS asks, max(CASE WHEN NOT is_command THEN code END) AS answers,
       min_by(CASE WHEN is_command THEN cardinal END, CASE WHEN is_command AND stands THEN position END) AS cardinal,
       count_if(NOT is_command) AS answered,
       min_by(CASE WHEN NOT is_command THEN position END, CASE WHEN NOT is_command THEN struct(place, position) END)
         AS first_answered,
       max(CASE WHEN NOT is_command THEN position END) AS last_answered,
       min_by(CASE WHEN NOT is_command THEN cause END, CASE WHEN NOT is_command THEN struct(place, position) END)
         AS follows,
       0L AS followers, 0L AS passes, 1L AS digests, 1L AS most,
       cast(NULL AS bigint) AS asking, cast(NULL AS bigint) AS fewest_asked,
       cast(NULL AS bigint) AS other_first_asked, cast(NULL AS bigint) AS other_last_asked,
       cast(NULL AS bigint) AS most_asked, cast(NULL AS bigint) AS answering,
       cast(NULL AS bigint) AS other_first_answered, cast(NULL AS bigint) AS other_last_answered,
       max(group_asked) - count_if(is_command AND NOT same) AS same,
       max(CASE WHEN is_started AND meant IS NULL AND start_follows_corrected THEN 1L ELSE 0L END) AS elsewhere,
       count_if(is_mismatch) AS mismatches, 0L AS twice,
       max(is_corrected) AS is_corrected, max(is_reissue) AS is_reissue, false AS is_open
FROM (
  SELECT *, same AND (
              NOT first_value(is_discarded) OVER (PARTITION BY grp, is_command, same ORDER BY position)
              OR was_read AND NOT is_letter
              OR NOT max(was_read AND NOT is_letter) OVER (PARTITION BY grp, is_command, same)) AS stands
  FROM {found})
GROUP BY grp

-- name: findings_of_keys
SELECT inline(array_compact(array(
         CASE WHEN is_conflict THEN named_struct('finding', 'conflict', 'position', position, 'grp', grp,
                                                 'differences', differences) END,
         CASE WHEN is_mismatch THEN named_struct('finding', 'conflict-mismatch', 'position', position, 'grp', grp,
                                                 'differences', NULL) END,
         CASE WHEN what IN (3, 4) AND nth > 1 THEN named_struct('finding', 'multiple', 'position', position, 'grp', grp,
                                                                'differences', NULL) END)))
FROM {found}

-- name: followers
-- The events of causes.
SELECT f.cause AS grp, f.position, f.kind, f.place
FROM {facts} f LEFT SEMI JOIN {open} o ON f.cause = o.grp
WHERE f.code % 16 IN (7, 8)

-- name: again
-- The events of causes with several events of their kind.
SELECT grp, position, kind, place FROM (
  SELECT *, count(*) OVER (PARTITION BY grp, kind) AS number FROM {followers})
WHERE number > 1

-- name: causes
-- Groups of events whose cause was found, or was not.
SELECT o.is_key, o.grp, CASE WHEN c.position IS NULL THEN 0L ELSE 1L END AS asked,
       CASE WHEN c.position IS NULL THEN NULL ELSE o.grp END AS first_asked,
       CASE WHEN c.position IS NULL THEN NULL ELSE o.grp END AS last_asked,
       coalesce(o.asks, CASE WHEN c.position IS NOT NULL THEN 0 END) AS asks, o.answers, o.cardinal, o.answered,
       o.first_answered, o.last_answered, o.follows, o.followers, o.passes, o.digests, o.most,
       o.asking, o.fewest_asked, o.other_first_asked, o.other_last_asked, o.most_asked, o.answering,
       o.other_first_answered, o.other_last_answered,
       0L AS same, 0L AS elsewhere, 0L AS mismatches,
       CASE WHEN c.position IS NULL THEN 0L ELSE coalesce(t.twice, 0L) END AS twice,
       false AS is_corrected, false AS is_reissue, false AS is_open
FROM {open} o
LEFT JOIN {causes} c ON c.position = o.grp
LEFT JOIN (SELECT grp, count(*) AS twice FROM {twice} GROUP BY grp) t ON t.grp = o.grp
