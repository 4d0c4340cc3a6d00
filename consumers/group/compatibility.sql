-- name: lock
SELECT pg_advisory_xact_lock(hashtextextended('reservation.members ' || %(consumer)s, 0))

-- name: living
SELECT DISTINCT m.process, m.declaration::text
FROM reservation.members m
WHERE m.consumer = %(consumer)s AND m.member IS DISTINCT FROM %(former)s::bigint
  AND m.declaration IS NOT NULL AND NOT reservation.is_gone(m.member)
ORDER BY m.process

-- name: store
-- With the series of the component that stop, because its newest process declares them no more.
UPDATE reservation.members
SET declaration = %(declaration)s::jsonb, first_member = coalesce(%(first)s::bigint, member)
WHERE member = %(member)s
RETURNING reservation.stop_series(consumer)
