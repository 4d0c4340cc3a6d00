-- name: sums
-- By day: how many messages there are, the first and the last, and the sums of two parts of their hashes.
SELECT to_char(m.time AT TIME ZONE 'UTC', 'YYYY-MM-DD'), count(*), min(m.global_position),
       max(m.global_position), sum(('x' || substr(m.hash, 1, 15))::bit(60)::bigint),
       sum(('x' || substr(m.hash, 16, 15))::bit(60)::bigint)
FROM (
  SELECT m.time, m.global_position,
         encode(sha256(convert_to(concat({columns}), 'UTF8')), 'hex') AS hash
  FROM ({messages}) AS m
  OFFSET 0
) AS m
GROUP BY 1

-- name: hashed
-- A column as it is hashed: its length before it, so that nothing can pass from one into the next.
coalesce(length({value}) || ':' || {value}, '-')

-- name: hashed_time
(extract(epoch FROM m.time) * 1000000)::bigint::text

-- name: hashed_value
m.{column}::text
