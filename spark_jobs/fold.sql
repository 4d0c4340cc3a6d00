-- Spark SQL. A fact is one row for a message; a summary is one row for a part of a group. The group
-- of a key holds its commands and their reservations, in one part for each digest of their content.
-- The group of a cause holds it and what follows it, in one part for each kind of event. Part 0
-- holds the cause itself, and followers that are no events.

-- name: summaries
-- A message asks if it is a command of the key, or the cause. It answers if it is the reservation
-- of the key, or an event that follows the cause.
SELECT is_key, grp, part,
       count_if(role = 1) AS asked,
       min(CASE WHEN role = 1 THEN position END) AS first_asked,
       max(CASE WHEN role = 1 THEN position END) AS last_asked,
       max(CASE WHEN role = 1 THEN code END) AS asks,
       max(CASE WHEN role = 2 THEN code END) AS answers,
       $cardinal AS cardinal,
       count_if(role = 2) AS answered,
       min(CASE WHEN role = 2 THEN position END) AS first_answered,
       max(CASE WHEN role = 2 THEN position END) AS last_answered,
       max(CASE WHEN role = 2 THEN cause END) AS follows,
       count_if(NOT is_key AND role IN (2, 3)) AS followers,
       count_if(role = 4) AS passes
FROM (
  SELECT /*+ REPARTITION($parts, grp) */ *
  FROM (
    SELECT inline(CASE
        WHEN what IN (2, 3, 4, 5, 8) THEN array(of_key, of_cause)
        WHEN what = 1 THEN array(of_key)
        ELSE array(of_cause) END)
    FROM (
      SELECT what,
             named_struct(
               'is_key', true, 'grp', CASE WHEN what = 5 THEN position ELSE coalesce(key, position) END,
               'part', coalesce(digest, 0L), 'role', CASE WHEN what IN (1, 2, 5) THEN 1 ELSE 2 END,
               'code', code, 'position', position, 'cause', cause$cardinal_field) AS of_key,
             named_struct(
               'is_key', false, 'grp', CASE WHEN what < 7 THEN position ELSE coalesce(cause, -position) END,
               'part', coalesce(kind, 0L),
               'role', CASE WHEN what < 7 THEN 1 WHEN what < 9 THEN 2 WHEN what = 9 THEN 3 ELSE 4 END,
               'code', code, 'position', position, 'cause', cause$cardinal_field) AS of_cause
      FROM (SELECT *, code % 16 AS what FROM {facts})
    )
  )
)
GROUP BY is_key, grp, part

-- name: merged
-- Summaries of several folds become one; every aggregate is associative and commutative.
SELECT $former is_key, grp, part,
       sum(asked) AS asked, min(first_asked) AS first_asked, max(last_asked) AS last_asked,
       max(asks) AS asks, max(answers) AS answers, min_by(cardinal, first_asked) AS cardinal,
       sum(answered) AS answered, min(first_answered) AS first_answered, max(last_answered) AS last_answered,
       max(follows) AS follows, sum(followers) AS followers, sum(passes) AS passes
FROM {summaries}
GROUP BY $former is_key, grp, part

-- name: stored
-- The stored summaries of groups that are judged again. Those of a closed group are there twice: what was counted of
-- the former ones is subtracted.
SELECT s.*, explode(CASE WHEN o.grp IS NULL THEN array(false, true) ELSE array(false) END) AS is_former
FROM {stored} s
LEFT SEMI JOIN {again} a ON s.is_key = a.is_key AND s.grp = a.grp
LEFT JOIN {not_closed} o ON s.is_key = o.is_key AND s.grp = o.grp

-- name: groups
-- One row for each group. A first event has no digest (part 0), because its command has one.
SELECT $former is_key, grp,
       sum(asked) AS asked, min(first_asked) AS first_asked, max(last_asked) AS last_asked,
       max(asks) AS asks, max(answers) AS answers, min_by(cardinal, first_asked) AS cardinal,
       sum(answered) AS answered, min(first_answered) AS first_answered, max(last_answered) AS last_answered,
       max(follows) AS follows, sum(followers) AS followers, sum(passes) AS passes,
       count_if(is_key AND part <> 0) AS digests, max(answered) AS most,
       -- With these, the first and last messages of two parts are known.
       count_if(asked > 0) AS asking, min(CASE WHEN asked > 0 THEN asked END) AS fewest_asked,
       max(first_asked) AS other_first_asked, min(last_asked) AS other_last_asked,
       max_by(first_asked, asked) AS most_asked,
       count_if(answered > 0) AS answering,
       max(first_answered) AS other_first_answered, min(last_answered) AS other_last_answered
FROM {summaries}
GROUP BY $former is_key, grp
