-- name: settings
-- As the functions that read a category have it: the planner is left no index but the right one.
SELECT set_config(name, 'off', true)
FROM unnest(ARRAY['enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'jit']) AS name

-- name: taken
SELECT now(), reservation.store_id()

-- name: head
SELECT reservation.category_head(%(category)s)

-- name: lag
-- One pass over so many messages of a category: for each partition how many of them were not dealt
-- with, the seconds since the first of these was written, and the first whose time cannot be read. The
-- row without a partition has how many messages there were, and where the last one is.
WITH passed AS MATERIALIZED (
  SELECT stream_name, global_position, reservation.readable_time(time) AS time
  FROM message_store.messages
  WHERE (message_store.category(stream_name), global_position)
        BETWEEN (%(category)s, %(after)s::bigint + 1) AND (%(category)s, 9223372036854775807)
  ORDER BY message_store.category(stream_name), global_position
  LIMIT %(limit)s
), placed AS (
  SELECT reservation.partition_of(stream_name, %(partitions)s) AS partition, global_position, time,
         coalesce((%(former_positions)s::bigint[])[
           1 + reservation.partition_of(stream_name, cardinality(%(former_positions)s::bigint[]))], 0)
           AS dealt_with
  FROM passed
)
SELECT partition, count(*) AS messages,
       greatest(extract(epoch FROM (now() AT TIME ZONE 'utc')
         - (array_agg(time ORDER BY global_position) FILTER (WHERE time IS NOT NULL))[1]), 0)::float8
         AS seconds,
       NULL::bigint AS ended, min(global_position) FILTER (WHERE time IS NULL) AS unreadable
FROM placed
WHERE global_position > greatest(dealt_with, (%(positions)s::bigint[])[1 + partition])
GROUP BY partition
UNION ALL
SELECT NULL, count(*), NULL, max(global_position), NULL FROM passed

-- name: breakers
SELECT consumer, category, type,
       CASE WHEN opened_at IS NULL THEN 'closed'
            WHEN is_probing AND until > clock_timestamp() THEN 'half_open' ELSE 'open' END,
       opened_at, until, error_type
FROM reservation.breakers
WHERE %(consumers)s::text[] IS NULL
   OR (consumer, category) IN (SELECT * FROM unnest(%(consumers)s::text[], %(categories)s::text[]))
ORDER BY consumer, category, type

-- name: dead_letters
-- The open ones, by what they wait for: `retry` after a fault. What waits for a breaker is tried when that lets it, and
-- nobody knows when a pause ends.
SELECT reservation.partition_of(stream_name, %(partitions)s) AS partition,
       CASE WHEN state <> 'waiting' THEN state
            WHEN reason IN ('running', 'limited', 'breaker_open', 'paused') THEN reason
            ELSE 'retry' END AS kind,
       count(*),
       min(CASE WHEN reason = 'breaker_open' THEN greatest(next_attempt_at, (
             SELECT b.until FROM reservation.breakers b
             WHERE (b.consumer, b.category) = (open.consumer, open.category) AND open.type = ANY (b.types)))
           ELSE next_attempt_at END) FILTER (WHERE reason <> 'paused')
FROM (
  SELECT * FROM reservation.dead_letters
  WHERE consumer = %(consumer)s AND category = %(category)s AND state IN ('waiting', 'parked', 'dead')
  ORDER BY consumer, category, entity, global_position  -- in which order one index has the open ones
  OFFSET 0
) AS open
GROUP BY 1, 2

-- name: parked_entities
-- How many entities have an open letter, behind which their later messages are parked.
SELECT count(*)
FROM (
  SELECT entity
  FROM (
    SELECT entity FROM reservation.dead_letters
    WHERE consumer = %(consumer)s AND category = %(category)s
      AND state IN ('waiting', 'parked', 'dead')
    ORDER BY consumer, category, entity, global_position
    OFFSET 0
  ) AS open
  WHERE entity IS NOT NULL
  GROUP BY entity
) AS parked
