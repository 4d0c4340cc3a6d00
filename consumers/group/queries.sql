-- name: join_group
SELECT member, partitions_there
FROM reservation.join_group(
  %(consumer)s, %(category)s, %(partitions)s, %(process)s, %(worker)s,
  make_interval(secs => %(lease)s), %(former)s)

-- name: rebalance
SELECT head, former_positions, held, positions, epochs, abandoned, letters, foreign_at, unsettled,
       next_in, overdue, reservation.pauses_of(%(consumer)s)
FROM reservation.rebalance(
  %(consumer)s, %(category)s, %(member)s, make_interval(secs => %(lease)s), %(may_release)s),
  reservation.next_scheduled()

-- name: limit_waits
SET lock_timeout = '500ms'

-- name: beat
-- Others see a lease once it is committed, so the commit waits neither for the disk nor for a standby.
SELECT set_config('synchronous_commit', 'off', true),
       reservation.renew_lease(member, make_interval(secs => %(lease)s))
FROM unnest(%(members)s::bigint[]) AS member

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
  %(message_id)s::uuid, %(has_former_positions)s)
FROM limited

-- name: attempt
UPDATE reservation.leases
SET attempted = %(global_position)s,
    attempts = CASE WHEN attempted = %(global_position)s THEN attempts + 1 ELSE 1 END
WHERE consumer = %(consumer)s AND category = %(category)s
  AND partition = reservation.partition_of(%(stream_name)s, %(size)s)
RETURNING partition, epoch, attempts

-- name: uncount_attempt
-- Whoever has taken the partition over meanwhile counts for itself.
UPDATE reservation.leases AS l
SET attempts = l.attempts - 1
WHERE l.consumer = %(consumer)s AND l.category = %(category)s
  AND l.partition = reservation.partition_of(%(stream_name)s, %(size)s)
  AND (l.partition, l.epoch) IN (
    SELECT * FROM unnest(%(partitions)s::integer[], %(epochs)s::bigint[]))
  AND l.attempted = %(global_position)s AND l.attempts > 0

-- name: lock_positions
-- With the same lock, and the same limit to a pause, as when a position is moved.
WITH limited AS (
  SELECT set_config('idle_in_transaction_session_timeout', %(longest_pause)s, true)
)
SELECT l.partition, l.epoch
FROM limited, reservation.leases l
WHERE l.consumer = %(consumer)s AND l.category = %(category)s
  AND l.partition = ANY (%(partitions)s::integer[])
  AND NOT EXISTS (
    SELECT FROM reservation.positions p
    WHERE p.consumer = l.consumer AND p.category = l.category AND p.partition = l.partition
      AND reservation.is_foreign(p.position, p.message_id))
ORDER BY l.partition
FOR NO KEY UPDATE OF l

-- name: foreign_at
-- The highest position of a consumer that was taken in another log; NULL if none was.
SELECT CASE WHEN reservation.has_foreign_former_positions(%(consumer)s, %(category)s) THEN max(p.position)
            ELSE max(p.position) FILTER (WHERE reservation.is_foreign(p.position, p.message_id)) END
FROM reservation.positions p
WHERE p.consumer = %(consumer)s AND p.category = %(category)s
