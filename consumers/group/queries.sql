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
-- Others see a lease once it is committed, so the commit waits neither for the disk nor for a standby.
SELECT set_config('synchronous_commit', 'off', true),
       reservation.renew_lease(%(member)s, make_interval(secs => %(lease)s))

-- name: leave_group
SELECT reservation.leave_group(%(member)s)

-- name: advance
-- From here on the transaction holds locks that others need, so that the server ends it if its client
-- pauses. What was read counts for this log only if the message before it is still there; the message
-- that ends it was read in this log too, or is the last one of the category, or of another partition.
WITH limited AS (
  SELECT set_config('idle_in_transaction_session_timeout', %(longest_pause)s, true)
)
SELECT reservation.move_positions(
  %(consumer)s, %(category)s, %(partitions)s, %(epochs)s, %(before)s, %(position)s,
  %(message_id)s::uuid, %(carried)s)
FROM limited

-- name: advance_or_fail
-- The same for a transaction that is committed without a look at the answer: where the position does not
-- move, the division fails.
WITH limited AS (
  SELECT set_config('idle_in_transaction_session_timeout', %(longest_pause)s, true)
)
SELECT 1 / reservation.move_positions(
  %(consumer)s, %(category)s, %(partitions)s, %(epochs)s, %(before)s, %(position)s,
  %(message_id)s::uuid, %(carried)s)::integer
FROM limited

-- name: attempt
UPDATE reservation.positions
SET attempted = %(global_position)s,
    attempts = CASE WHEN attempted = %(global_position)s THEN attempts + 1 ELSE 1 END
WHERE consumer = %(consumer)s AND category = %(category)s
  AND partition = reservation.partition_of(%(stream_name)s, %(size)s)
  AND generation >= reservation.newest_generation(
    %(consumer)s, %(category)s, reservation.partition_of(%(stream_name)s, %(size)s))
RETURNING partition, epoch, attempts

-- name: take_back
-- Whoever has taken the partition over meanwhile counts for itself.
UPDATE reservation.positions AS p
SET attempts = p.attempts - 1
WHERE p.consumer = %(consumer)s AND p.category = %(category)s
  AND p.partition = reservation.partition_of(%(stream_name)s, %(size)s)
  AND p.generation >= reservation.newest_generation(
    %(consumer)s, %(category)s, reservation.partition_of(%(stream_name)s, %(size)s))
  AND (p.partition, p.epoch) IN (
    SELECT * FROM unnest(%(partitions)s::integer[], %(epochs)s::bigint[]))
  AND p.attempted = %(global_position)s AND p.attempts > 0

-- name: hold
-- With the same limit to a pause as when a position is moved.
WITH limited AS (
  SELECT set_config('idle_in_transaction_session_timeout', %(longest_pause)s, true)
)
SELECT p.partition, p.epoch
FROM limited, unnest(%(partitions)s::integer[]) AS h(partition), LATERAL (
  SELECT p.partition, p.epoch FROM reservation.positions p
  WHERE p.consumer = %(consumer)s AND p.category = %(category)s AND p.partition = h.partition
    AND p.generation >= reservation.newest_generation(%(consumer)s, %(category)s, h.partition)
    AND NOT reservation.is_foreign(p.position, p.message_id)
  FOR SHARE
) AS p

-- name: foreign_at
-- The highest position of a consumer that was taken in another log; NULL if none was.
SELECT CASE WHEN reservation.carries_foreign(%(consumer)s, %(category)s) THEN max(p.position)
            ELSE max(p.position) FILTER (WHERE reservation.is_foreign(p.position, p.message_id)) END
FROM reservation.positions_of(%(consumer)s, %(category)s) p
