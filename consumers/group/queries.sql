-- name: join_group
SELECT member, partitions_there
FROM reservation.join_group(
  %(consumer)s, %(category)s, %(partitions)s, %(process)s, %(partition)s,
  make_interval(secs => %(lease)s), %(former)s)

-- name: take_part
SELECT head, carried, held, positions, epochs, unclean, retry, foreign_at,
       next_in, overdue
FROM reservation.take_part(
  %(consumer)s, %(category)s, %(member)s, make_interval(secs => %(lease)s)),
  reservation.next_scheduled()

-- name: beat
UPDATE reservation.members SET expires_at = clock_timestamp() + make_interval(secs => %(lease)s)
WHERE member = %(member)s

-- name: leave_group
SELECT reservation.leave_group(%(member)s)

-- name: advance
-- From here on the transaction holds locks that others need, so that the server ends it if its client
-- pauses. What was read counts for this log only if the message before it is still there; the message
-- that ends it was read in this log too, or is the last one of the category, or of another partition.
WITH limited AS (
  SELECT set_config('idle_in_transaction_session_timeout', %(longest_pause)s, true)
)
UPDATE reservation.positions AS p
SET position = %(position)s, updated_at = now(), attempted = NULL, attempts = 0,
    message_id = coalesce(
      %(message_id)s::uuid, reservation.message_at(%(category)s, %(position)s))
FROM limited, unnest(%(partitions)s::integer[], %(epochs)s::bigint[]) AS h(partition, epoch)
WHERE p.consumer = %(consumer)s AND p.category = %(category)s AND p.partition = h.partition
  AND p.epoch = h.epoch AND p.position = %(before)s
  AND NOT reservation.is_foreign(p.position, p.message_id)
  AND NOT (%(carried)s AND reservation.carries_foreign(%(consumer)s, %(category)s))

-- name: attempt
UPDATE reservation.positions
SET attempted = %(global_position)s,
    attempts = CASE WHEN attempted = %(global_position)s THEN attempts + 1 ELSE 1 END
WHERE consumer = %(consumer)s AND category = %(category)s
  AND partition = reservation.partition_of(%(stream_name)s, %(size)s)
RETURNING partition, epoch, attempts

-- name: take_back
-- Whoever has taken the partition over meanwhile counts for itself.
UPDATE reservation.positions AS p
SET attempts = p.attempts - 1
FROM unnest(%(partitions)s::integer[], %(epochs)s::bigint[]) AS h(partition, epoch)
WHERE p.consumer = %(consumer)s AND p.category = %(category)s AND p.partition = h.partition
  AND p.epoch = h.epoch AND p.attempted = %(global_position)s AND p.attempts > 0

-- name: hold
-- With the same limit to a pause as when a position is moved.
WITH limited AS (
  SELECT set_config('idle_in_transaction_session_timeout', %(longest_pause)s, true)
)
SELECT p.partition, p.epoch FROM limited, reservation.positions p
WHERE p.consumer = %(consumer)s AND p.category = %(category)s
  AND p.partition = ANY(%(partitions)s)
  AND NOT reservation.is_foreign(p.position, p.message_id)
FOR SHARE OF p

-- name: foreign_at
-- The highest position of a consumer that was taken in another log; NULL if none was.
SELECT CASE WHEN reservation.carries_foreign(%(consumer)s, %(category)s) THEN max(p.position)
            ELSE max(p.position) FILTER (WHERE reservation.is_foreign(p.position, p.message_id)) END
FROM reservation.positions p
WHERE p.consumer = %(consumer)s AND p.category = %(category)s
