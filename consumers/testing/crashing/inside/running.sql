-- name: claim
-- Takes a category over directly before one of its messages.
WITH before AS (
  SELECT coalesce(k.global_position, 0) AS position, k.id AS message_id
  FROM (SELECT 1) AS one
  LEFT JOIN (
    SELECT m.global_position, m.id FROM message_store.messages m
    WHERE message_store.category(m.stream_name) = %(category)s
    ORDER BY m.global_position
    LIMIT CASE WHEN %(ordinal)s > 0 THEN 1 ELSE 0 END
    OFFSET greatest(%(ordinal)s - 1, 0)
  ) AS k ON true
), taken AS (
  INSERT INTO reservation.leases AS l (consumer, category) VALUES (%(consumer)s, %(category)s)
  ON CONFLICT (consumer, category, partition) DO UPDATE SET holder = NULL, epoch = l.epoch + 1
  RETURNING epoch
), moved AS (
  UPDATE reservation.moves m
  SET position = b.position, message_id = b.message_id
  FROM before AS b
  WHERE (m.consumer, m.category, m.partition) = (%(consumer)s, %(category)s, 0)
  RETURNING m.n
), added AS (
  INSERT INTO reservation.moves (consumer, category, position, message_id)
  SELECT %(consumer)s, %(category)s, b.position, b.message_id
  FROM before AS b
  WHERE NOT EXISTS (SELECT FROM moved)
)
SELECT b.position, t.epoch FROM before AS b, taken AS t

-- name: give_back
-- Leaves to the first consumer what the second has handled.
UPDATE reservation.moves p
SET position = q.position, message_id = q.message_id
FROM reservation.moves q
WHERE p.consumer = %(consumer)s AND q.consumer = %(consumer)s || '/2'
  AND (p.category, p.partition) = (q.category, q.partition) AND q.position > p.position

-- name: forget
WITH gone AS (
  DELETE FROM reservation.leases WHERE consumer = %(consumer)s || '/2'
)
DELETE FROM reservation.moves WHERE consumer = %(consumer)s || '/2'

-- name: bring_forward
-- Lets messages that wait for their next attempt be due.
UPDATE reservation.dead_letters SET next_attempt_at = now()
WHERE state = 'waiting' AND next_attempt_at > now()
