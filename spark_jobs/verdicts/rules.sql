-- In Spark's SQL: the verdicts on groups, from their summaries and the consumers' positions.

-- name: settled
-- Groups, each with whether its messages have to be read, because its summary does not say everything. If it
-- does, all commands of a key have the same content.
SELECT g.*,
       g.asked AS same, 0L AS elsewhere, 0L AS mismatches, 0L AS twice, false AS is_corrected, false AS is_reissue,
       m.grp IS NOT NULL
         OR CASE
              WHEN NOT is_key AND asked > 0 THEN most > 1
              WHEN NOT is_key THEN followers > 0 AND g.grp > 0
              WHEN answers % 16 = 8 THEN asked > 0 AND (
                digests > 1 OR answered > 1 OR NOT coalesce(follows IN (first_asked, last_asked), false))
              WHEN asks % 16 = 5 THEN false
              -- The first command was discarded, and the consumer may have read a later one.
              WHEN d.is_discarded AND answered = 0 AND asked > 1 THEN true
              ELSE digests > 1 OR answered > 1 OR $keyless_too AND asked > 0 AND g.grp = first_asked
            END AS is_open
FROM {groups} g
LEFT JOIN {with_letters} m ON g.is_key AND g.grp = m.grp AND $is_now
LEFT JOIN {letter_states} d ON g.is_key AND d.position = g.first_asked

-- name: judged
-- The verdict of each group. Groups that need no attention are counted together. The verdict of a closed group
-- does not depend on what consumers do. A group that is listed has a row of its own, with all of its columns.
SELECT $former is_key, code, verdict, is_keyless, is_open, is_closed, listed.*, number, asked, answered, same, again,
       mismatches, twice, corrected, multiple, causes
FROM (
SELECT $former is_key, code, verdict, is_keyless, is_open, is_closed,
       CASE WHEN $is_listed THEN
         struct(grp, first_asked, last_asked, first_answered, last_answered, asks, answers, cardinal, follows,
                followers, passes, digests, most, asking, fewest_asked, other_first_asked, other_last_asked,
                most_asked, answering, other_first_answered, other_last_answered)
       END AS listed,
       count(*) AS number, sum(asked) AS asked, sum(answered) AS answered,
       sum(same) AS same, sum(greatest(same + elsewhere - 1, 0)) AS again, sum(mismatches) AS mismatches,
       count_if(twice > 0) AS twice, count_if(is_corrected) AS corrected,
       count_if(is_key AND answered > 1 AND answers % 16 IN (3, 4)) AS multiple,
       count_if(NOT is_key AND asked > 0 AND followers > 0) AS causes
FROM (
 SELECT *, $is_closed AS is_closed FROM (
  SELECT *,
         CASE
           WHEN is_open THEN 'open'
           WHEN is_key THEN
             CASE
               WHEN what = 5 THEN 'wrong-type'
               WHEN asked = 0 AND answers % 16 = 8 THEN 'no command'
               WHEN asked = 0 THEN CASE WHEN follows_corrected THEN 'no command' ELSE 'orphan' END
               -- The consumer took its key from the correction, or recognized its reissue by it.
               WHEN is_keyless AND NOT is_letter AND (is_corrected OR is_reissue AND was_read) THEN 'reserved'
               WHEN answered > 0 THEN 'reserved'
               WHEN is_letter THEN 'dead'
               WHEN was_read THEN 'missing'
               ELSE 'pending'
             END
           WHEN asked = 0 THEN CASE WHEN answered > 0 THEN 'without-cause' ELSE 'no message' END
           WHEN what NOT IN (3, 4, 6) THEN 'cause'
           WHEN followers > 0 THEN 'handled'
           WHEN passes > 0 THEN 'passed'
           WHEN is_letter THEN 'dead'
           WHEN NOT was_read THEN 'pending'
           WHEN what = 4 THEN 'silent'
           ELSE 'unhandled'
         END AS verdict
  FROM (
    SELECT g.*, coalesce(asks, answers) AS code, coalesce(asks, answers) % 16 AS what,
           coalesce(g.is_key AND asks % 16 IN (1, 2) AND g.grp = first_asked, false) AS is_keyless,
           coalesce(letter.is_letter, false) AS is_letter,
           coalesce(cause.is_corrected, false) AS follows_corrected,
           $was_read AS was_read
    FROM {groups} g
    LEFT JOIN {letter_states} letter ON letter.position = g.first_asked
    LEFT JOIN {letter_states} cause ON g.is_key AND cause.position = g.follows
  )
 )
)
GROUP BY ALL
)

-- name: counts
-- What is counted, for each code; of open groups, only how many there are.
SELECT $former is_key, is_open, is_closed, code, sum(number) AS number,
       -- Open keys whose messages do not all say the same, or follow a command that may be elsewhere; open groups
       -- with other messages than their parts' first and last ones; and larger keys.
       count_if(is_open AND is_key AND (digests > 1 OR coalesce(answers % 16 = 8, false))) AS differing,
       count_if(is_open AND CASE WHEN is_key THEN asking > 2 OR fewest_asked > 2 OR answered > 2
                                 ELSE answering > 2 OR most > 2 END) AS scattered,
       count_if(is_open AND is_key AND asked > 2) AS larger,
       sum(CASE WHEN is_command THEN asked ELSE 0 END) AS commands,
       sum(CASE WHEN is_command AND NOT is_keyless THEN number ELSE 0 END) AS keys,
       sum(CASE WHEN is_keyless THEN number ELSE 0 END) AS keyless,
       sum(CASE WHEN is_command AND NOT is_keyless THEN again ELSE 0 END) AS duplicates,
       sum(CASE WHEN is_command THEN asked - same ELSE 0 END) AS conflicts,
       sum(CASE WHEN is_command THEN corrected ELSE 0 END) AS corrected,
       sum(mismatches) AS conflict_mismatches, sum(multiple) AS multiple,
       sum(CASE WHEN NOT is_key THEN answered ELSE 0 END) AS events, sum(causes) AS causes, sum(twice) AS effect_twice,
       sum(CASE WHEN verdict = 'without-cause' THEN answered ELSE 0 END) AS without_cause,
       sum(CASE WHEN NOT is_key AND code % 16 IN (3, 4, 6) THEN number ELSE 0 END) AS messages,
       $verdicts
FROM (SELECT *, is_key AND code % 16 IN (1, 2) AS is_command FROM {judged})
GROUP BY $former is_key, is_open, is_closed, code
