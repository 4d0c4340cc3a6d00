-- name: group
SELECT g.partitions, g.former_positions, array_agg(p.position ORDER BY p.partition), max(p.epoch),
       bool_or(reservation.is_foreign(p.position, p.message_id))
         OR reservation.has_foreign_former_positions(g.consumer, g.category)
FROM reservation.groups g
JOIN reservation.positions p USING (consumer, category)
WHERE g.consumer = %(consumer)s AND g.category = %(category)s
GROUP BY g.consumer, g.category

-- name: live
SELECT DISTINCT process FROM reservation.members
WHERE consumer = %(consumer)s AND category = %(category)s AND NOT reservation.is_gone(member)
ORDER BY process

-- name: lock
-- Nobody joins until the transaction ends.
SELECT FROM reservation.groups
WHERE consumer = %(consumer)s AND category = %(category)s
FOR UPDATE

-- name: lock_positions
-- Waits for a process that is no longer a member and still in a transaction that moves a position.
SELECT FROM reservation.leases
WHERE consumer = %(consumer)s AND category = %(category)s
ORDER BY partition
FOR UPDATE

-- name: create_group
INSERT INTO reservation.groups (consumer, category, partitions)
VALUES (%(consumer)s, %(category)s, 1)
ON CONFLICT DO NOTHING

-- name: create_position
WITH added AS (
  INSERT INTO reservation.leases (consumer, category) VALUES (%(consumer)s, %(category)s)
  ON CONFLICT DO NOTHING
  RETURNING consumer, category
)
INSERT INTO reservation.moves (consumer, category) SELECT consumer, category FROM added

-- name: remove_members
-- Those that are gone. One that was only paused has to join again, and so learns of the change.
SELECT reservation.remove_member(member) FROM reservation.members
WHERE consumer = %(consumer)s AND category = %(category)s

-- name: store_group
UPDATE reservation.groups
SET partitions = cardinality(%(after)s::bigint[]), former_positions = %(former_positions)s::bigint[],
    former_position_ids = CASE WHEN %(former_positions)s::bigint[] IS NOT NULL THEN ARRAY(
      SELECT reservation.message_at(%(category)s, c.position)
      FROM unnest(%(former_positions)s::bigint[]) WITH ORDINALITY AS c("position", n)
      ORDER BY c.n) END
WHERE consumer = %(consumer)s AND category = %(category)s

-- name: store_leases
-- The epoch is one that no process has, so a former holder of a position cannot move it.
INSERT INTO reservation.leases (consumer, category, partition, epoch)
SELECT %(consumer)s, %(category)s, i, %(epoch)s
FROM generate_series(0, cardinality(%(after)s::bigint[]) - 1) AS i

-- name: store_moves
INSERT INTO reservation.moves (consumer, category, partition, position, message_id)
SELECT %(consumer)s, %(category)s, a.n - 1, a.position,
       reservation.message_at(%(category)s, a.position)
FROM unnest(%(after)s::bigint[]) WITH ORDINALITY AS a(position, n)

-- name: remove_leases
DELETE FROM reservation.leases WHERE consumer = %(consumer)s AND category = %(category)s

-- name: remove_moves
DELETE FROM reservation.moves WHERE consumer = %(consumer)s AND category = %(category)s

-- name: settings
SELECT set_config(name, 'off', true)
FROM unnest(ARRAY['enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'jit']) AS name

-- name: count_moved
-- Of the messages between two positions, how many a move skips, and how many are read again after
-- it; and whether there are more than were counted.
WITH moved AS MATERIALIZED (
  SELECT stream_name, global_position
  FROM message_store.messages
  WHERE (message_store.category(stream_name), global_position)
        BETWEEN (%(category)s, %(low)s::bigint + 1) AND (%(category)s, %(high)s::bigint)
  ORDER BY message_store.category(stream_name), global_position
  LIMIT %(limit)s + 1
), placed AS (
  SELECT global_position,
         greatest((%(before)s::bigint[])[partition], former_position) AS before,
         (%(after)s::bigint[])[partition] AS after
  FROM (
    SELECT global_position,
           1 + reservation.partition_of(stream_name, cardinality(%(before)s::bigint[]))
             AS partition,
           (%(former_positions)s::bigint[])[
             1 + reservation.partition_of(stream_name, cardinality(%(former_positions)s::bigint[]))]
             AS former_position
    FROM moved
  ) AS one
)
SELECT count(*) FILTER (WHERE global_position > before AND global_position <= after),
       count(*) FILTER (WHERE global_position <= before AND global_position > after),
       count(*) > %(limit)s
FROM placed

-- name: last
SELECT coalesce(max(global_position), 0) FROM message_store.messages
