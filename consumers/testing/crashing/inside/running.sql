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
  UPDATE reservation.positions p
  SET position = b.position, message_id = b.message_id, holder = NULL, epoch = p.epoch + 1
  FROM before AS b
  WHERE (p.consumer, p.category, p.partition) = (%(consumer)s, %(category)s, 0)
  RETURNING p.position, p.epoch
), added AS (
  INSERT INTO reservation.positions (consumer, category, partition, position, message_id, epoch)
  SELECT %(consumer)s, %(category)s, 0, b.position, b.message_id, 1
  FROM before AS b
  WHERE NOT EXISTS (SELECT FROM taken)
  RETURNING position, epoch
)
SELECT position, epoch FROM taken UNION ALL SELECT position, epoch FROM added

-- name: give_back
-- Leaves to the first consumer what the second has handled.
UPDATE reservation.positions p
SET position = q.position, message_id = q.message_id
FROM reservation.positions q
WHERE p.consumer = %(consumer)s AND q.consumer = %(consumer)s || '/2'
  AND (p.category, p.partition) = (q.category, q.partition) AND q.position > p.position

-- name: forget
DELETE FROM reservation.positions WHERE consumer = %(consumer)s || '/2'

-- name: bring_forward
-- Lets messages that wait for their next attempt be due.
UPDATE reservation.dead_letters SET next_attempt_at = now()
WHERE state = 'dead' AND next_attempt_at IS NOT NULL
