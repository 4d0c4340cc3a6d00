-- name: group
SELECT g.partitions, g.carried, array_agg(p.position ORDER BY p.partition), max(p.epoch),
       bool_or(reservation.is_foreign(p.position, p.message_id))
         OR reservation.carries_foreign(g.consumer, g.category)
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
SELECT FROM reservation.positions
WHERE consumer = %(consumer)s AND category = %(category)s
ORDER BY partition
FOR UPDATE

-- name: create_group
INSERT INTO reservation.groups (consumer, category, partitions)
VALUES (%(consumer)s, %(category)s, 1)
ON CONFLICT DO NOTHING

-- name: create_position
-- The lock of the group is held.
INSERT INTO reservation.positions (consumer, category)
SELECT %(consumer)s, %(category)s
WHERE NOT EXISTS (SELECT FROM reservation.positions_of(%(consumer)s, %(category)s))

-- name: remove_members
-- Those that are gone. One that was only paused has to join again, and so learns of the change.
DELETE FROM reservation.members WHERE consumer = %(consumer)s AND category = %(category)s

-- name: store_group
UPDATE reservation.groups
SET partitions = cardinality(%(after)s::bigint[]), carried = %(carried)s::bigint[],
    carried_ids = CASE WHEN %(carried)s::bigint[] IS NOT NULL THEN ARRAY(
      SELECT reservation.message_at(%(category)s, c.position)
      FROM unnest(%(carried)s::bigint[]) WITH ORDINALITY AS c("position", n)
      ORDER BY c.n) END
WHERE consumer = %(consumer)s AND category = %(category)s

-- name: store_positions
-- The epoch is one that no process has, so a former holder of a position cannot move it.
WITH after AS (
  SELECT a.n - 1 AS partition, a.position,
         reservation.message_at(%(category)s, a.position) AS message_id
  FROM unnest(%(after)s::bigint[]) WITH ORDINALITY AS a(position, n)
), updated AS (
  UPDATE reservation.positions p
  SET position = a.position, message_id = a.message_id, epoch = %(epoch)s, holder = NULL,
      attempted = NULL, attempts = 0, updated_at = now()
  FROM after AS a
  WHERE p.consumer = %(consumer)s AND p.category = %(category)s AND p.partition = a.partition
  RETURNING p.partition
)
INSERT INTO reservation.positions (consumer, category, partition, position, epoch, message_id)
SELECT %(consumer)s, %(category)s, a.partition, a.position, %(epoch)s, a.message_id
FROM after AS a
WHERE a.partition NOT IN (SELECT partition FROM updated)

-- name: remove_positions
DELETE FROM reservation.positions
WHERE consumer = %(consumer)s AND category = %(category)s
  AND partition >= cardinality(%(after)s::bigint[])

-- name: settings
SELECT set_config(name, 'off', true)
FROM unnest(ARRAY['enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'jit']) AS name

-- name: passed
-- What a move makes of the messages between two positions: those that it passes over, those that it
-- has read again, and whether there are more than were looked at.
WITH passed AS MATERIALIZED (
  SELECT stream_name, global_position
  FROM message_store.messages
  WHERE (message_store.category(stream_name), global_position)
        BETWEEN (%(category)s, %(low)s::bigint + 1) AND (%(category)s, %(high)s::bigint)
  ORDER BY message_store.category(stream_name), global_position
  LIMIT %(limit)s + 1
), placed AS (
  SELECT global_position,
         greatest((%(before)s::bigint[])[partition], carried_to) AS before,
         (%(after)s::bigint[])[partition] AS after
  FROM (
    SELECT global_position,
           1 + reservation.partition_of(stream_name, cardinality(%(before)s::bigint[]))
             AS partition,
           (%(carried)s::bigint[])[
             1 + reservation.partition_of(stream_name, cardinality(%(carried)s::bigint[]))]
             AS carried_to
    FROM passed
  ) AS one
)
SELECT count(*) FILTER (WHERE global_position > before AND global_position <= after),
       count(*) FILTER (WHERE global_position <= before AND global_position > after),
       count(*) > %(limit)s
FROM placed

-- name: last
SELECT coalesce(max(global_position), 0) FROM message_store.messages
