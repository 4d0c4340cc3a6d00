-- name: sums
-- By day: how many messages there are, the first and the last, the sums of two parts of their hashes, and the
-- first of those that cannot be read.
SELECT to_char(m.time AT TIME ZONE 'UTC', 'YYYY-MM-DD'), count(*), min(m.global_position),
       max(m.global_position), sum(('x' || substr(m.hash, 1, 15))::bit(60)::bigint),
       sum(('x' || substr(m.hash, 16, 15))::bit(60)::bigint),
       coalesce((array_agg(m.global_position ORDER BY m.global_position)
                 FILTER (WHERE m.is_unreadable))[1:10], '{{}}')
FROM (
  SELECT m.time, m.global_position,
         starts_with(m.data, 'unreadable: ') IS TRUE OR starts_with(m.metadata, 'unreadable: ') IS TRUE
         OR m.time IN ('0001-01-01 00:00:00+00', '9999-12-31 00:00:00+00') AS is_unreadable,
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
