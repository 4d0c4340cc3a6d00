-- name: claim
-- Takes over the position of a consumer: a process that held it before can not move it any more.
INSERT INTO reservation.positions (consumer, category)
VALUES (%(consumer)s, %(category)s)
ON CONFLICT (consumer, category)
DO UPDATE SET epoch = positions.epoch + 1, updated_at = now()
RETURNING position, epoch

-- name: advance
UPDATE reservation.positions
SET position = %(position)s, updated_at = now()
WHERE consumer = %(consumer)s AND category = %(category)s
  AND epoch = %(epoch)s AND position = %(before)s

-- name: epoch
SELECT epoch FROM reservation.positions WHERE consumer = %(consumer)s AND category = %(category)s
