-- name: find
SELECT ordinal, known, dropped_until
FROM reservation.find_processed(%s, %s, %s, %s::timestamp[], %s)

-- name: record
SELECT reservation.check_recorded(
  reservation.record_processed(%s, %s::interval, %s, %s, %s::timestamp[], %s, %s), %s)

-- name: partitions_to_drop
-- What is kept longer than it has to be, by the handler. `held_by` is the day of the oldest message
-- that its consumer has yet to handle, where that keeps more than the handler asks for: from it on
-- nothing is dropped, or that message would be refused.
WITH handlers AS MATERIALIZED (
  SELECT h.handler, h.consumer, h.type,
         (clock_timestamp() AT TIME ZONE 'utc' - h.keep)::date AS wanted,
         least((
           SELECT min(reservation.readable_time(m.time))
           FROM (
             SELECT p.category,
                    min(CASE WHEN reservation.is_foreign(p.position, p.message_id) THEN 0
                             ELSE p.position END) AS position
             FROM reservation.positions p
             WHERE p.consumer = h.consumer
             GROUP BY p.category
           ) AS p
           JOIN message_store.messages m
             ON message_store.category(m.stream_name) = p.category
                AND m.global_position > p.position
           WHERE m.type = h.type
         ), (
           SELECT min(reservation.readable_time(m.time))
           FROM reservation.dead_letters d
           JOIN message_store.messages m
             ON m.global_position = d.global_position AND m.id = d.message_id
           WHERE d.consumer = h.consumer AND d.type = h.type
             AND d.state IN ('waiting', 'parked', 'dead')
         ))::date AS waiting
  FROM reservation.processed_handlers h
  WHERE h.keep IS NOT NULL
)
SELECT h.handler, h.consumer, h.type,
       CASE WHEN h.waiting < h.wanted THEN h.waiting END AS held_by,
       ARRAY(
         SELECT to_date(right(c.relname, 8), 'YYYYMMDD')
         FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'reservation.processed_for_a_time'::regclass
           AND c.relname ~ ('^processed_' || h.handler || '_until_[0-9]{8}$')
           AND to_date(right(c.relname, 8), 'YYYYMMDD') <= least(h.wanted, h.waiting)
         ORDER BY 1
       ) AS days
FROM handlers h
ORDER BY h.consumer, h.type

-- name: set_lock_timeout
SELECT set_config('lock_timeout', %s, true)

-- name: lock_partitions
LOCK TABLE reservation.processed_for_a_time IN ACCESS EXCLUSIVE MODE

-- name: raise_dropped_until
UPDATE reservation.processed_handlers
SET dropped_until = greatest(dropped_until, %(until)s::date)
WHERE handler = %(handler)s

-- name: drop_partition
DROP TABLE IF EXISTS reservation.{partition}

-- name: make_partitions_ahead
SELECT count(*) FILTER (WHERE made)
FROM (
  SELECT reservation.make_processed_partition(
           h.handler, ((clock_timestamp() AT TIME ZONE 'utc')::date + n)) AS made
  FROM reservation.processed_handlers h, generate_series(0, %s) AS n
  WHERE h.keep IS NOT NULL
  ORDER BY h.handler, n
) AS made

-- name: forget
-- Those of one category: a type may be handled from several.
DELETE FROM reservation.processed_messages p
USING reservation.processed_handlers h, message_store.messages m
WHERE h.consumer = %(consumer)s AND h.type = ANY (%(types)s::text[]) AND p.handler = h.handler
  AND m.global_position = p.global_position
  AND message_store.category(m.stream_name) = %(category)s::varchar

-- name: forget_dropped
-- Messages of days that were dropped would be refused.
UPDATE reservation.processed_handlers SET dropped_until = NULL
WHERE consumer = %(consumer)s AND type = ANY (%(types)s::text[]) AND dropped_until IS NOT NULL
