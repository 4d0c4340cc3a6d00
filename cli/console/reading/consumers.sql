-- name: reads
-- What every consumer reads that was ever run.
SELECT consumer, category FROM reservation.groups

-- name: members
-- The processes in each group, and how many partitions each holds. The last beat of a member's heart is
-- when its lease began.
SELECT m.consumer, m.category, m.process, m.joined_at,
       extract(epoch FROM clock_timestamp() - reservation.lease_end(m.member))::float8 + %(lease)s AS beat,
       reservation.is_gone(m.member) AS gone,
       ARRAY(SELECT l.partition FROM reservation.leases l
             WHERE (l.consumer, l.category, l.holder) = (m.consumer, m.category, m.member)
             ORDER BY l.partition) AS held
FROM reservation.members m
ORDER BY m.consumer, m.category, m.member
LIMIT %(limit)s

-- name: waiting
-- The messages that are tried again soonest.
SELECT consumer, category, global_position, stream_name, type, attempts, reason, next_attempt_at
FROM unnest(%(consumers)s::text[], %(categories)s::text[]) AS r (of_consumer, of_category)
CROSS JOIN LATERAL (
  SELECT d.*
  FROM reservation.dead_letters d
  WHERE d.consumer = r.of_consumer AND d.category = r.of_category
    AND d.state = 'waiting'
  ORDER BY d.next_attempt_at
  LIMIT %(limit)s
) AS first
ORDER BY next_attempt_at, global_position
LIMIT %(limit)s
