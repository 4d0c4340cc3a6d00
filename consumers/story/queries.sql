-- name: message
-- What is read of a message. Data that is large even when compressed is left in the server.
m.id::varchar, m.stream_name::varchar, reservation.readable_type(m.type), m.position, m.global_position,
CASE WHEN pg_column_size(m.data) > 100000
     THEN '"too large to be shown: ' || pg_column_size(m.data) || ' bytes"'
     ELSE reservation.readable_text(m.data) END,
reservation.readable_text(m.metadata), reservation.readable_time(m.time)

-- name: settings
-- The planner is left no way but the indexes. A shorter limit of the role or the database stays.
SELECT set_config(name, value, true)
FROM (VALUES ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('jit', 'off'),
             ('statement_timeout', (%(milliseconds)s::int)::text)) AS s (name, value)
WHERE name <> 'statement_timeout'
   OR (SELECT setting::int NOT BETWEEN 1 AND %(milliseconds)s::int
       FROM pg_settings WHERE pg_settings.name = 'statement_timeout')

-- name: end_of_log
SELECT coalesce((SELECT m.global_position FROM message_store.messages m
                 ORDER BY m.global_position DESC LIMIT 1), 0)

-- name: by_id
SELECT /* message */
FROM message_store.messages m
WHERE m.id = ANY (%(ids)s::uuid[])
ORDER BY m.global_position

-- name: at_positions
SELECT /* message */
FROM message_store.messages m
WHERE m.global_position = ANY (%(positions)s::bigint[])
ORDER BY m.global_position

-- name: first_of_streams
SELECT /* message */
FROM unnest(%(streams)s::text[]) AS s (name)
CROSS JOIN LATERAL (
  SELECT m.* FROM message_store.messages m
  WHERE m.stream_name = s.name AND m.position = 0
  LIMIT 1
) AS m
ORDER BY m.global_position

-- name: last_of_stream
SELECT /* message */
FROM message_store.messages m
WHERE m.stream_name = %(stream)s
ORDER BY m.position DESC
LIMIT %(limit)s

-- name: groups
SELECT g.consumer, g.category FROM reservation.groups g

-- name: ending_with
-- The streams whose names have one of some endings: a walk through the whole index over names. The first
-- condition is the quicker one.
SELECT m.stream_name::varchar
FROM message_store.messages m
WHERE m.position = 0 AND strpos(m.stream_name, %(key)s) > 0
  AND right(m.stream_name, length(%(key)s) + 1) IN ('-' || %(key)s, '+' || %(key)s)
LIMIT %(limit)s

-- name: processed
-- The messages that were processed under a key, of each handler that remembers keys. The limit keeps each
-- handler a step into the index.
SELECT p.global_position
FROM reservation.processed_handlers h
CROSS JOIN LATERAL (
  SELECT p.global_position FROM reservation.processed_messages p
  WHERE p.handler = h.handler AND p.key = %(key)s
  LIMIT 10
) AS p
LIMIT %(limit)s

-- name: following
-- In a part of the log: what follows from some messages, from what follows from these, and so on.
WITH RECURSIVE near AS MATERIALIZED (
  SELECT m.global_position, reservation.causation(m.metadata) AS cause
  FROM message_store.messages m
  WHERE m.global_position > %(after)s AND m.global_position <= %(until)s
    AND m.metadata->'causationMessageGlobalPosition' IS NOT NULL
), found (global_position) AS (
  SELECT unnest(%(causes)s::bigint[])
  UNION
  SELECT near.global_position FROM found JOIN near ON near.cause = found.global_position
)
SELECT /* message */
FROM (
  SELECT found.global_position FROM found
  WHERE found.global_position <> ALL (%(causes)s::bigint[])
  ORDER BY found.global_position
  LIMIT %(limit)s
) AS f
CROSS JOIN LATERAL (
  SELECT m.* FROM message_store.messages m WHERE m.global_position = f.global_position LIMIT 1
) AS m
ORDER BY m.global_position

-- name: with_key
-- Of the next messages of a stream those of a type that hold each part of a key.
SELECT /* message */
FROM (
  SELECT m.* FROM message_store.messages m
  WHERE m.stream_name = %(stream)s AND m.position > %(after)s
  ORDER BY m.position
  LIMIT %(looked_at)s
) AS m
WHERE m.type = %(type)s AND jsonb_typeof(m.data) = 'object'
  AND %(parts)s::text[] <@ ARRAY(SELECT f.value FROM jsonb_each_text(m.data) AS f)
ORDER BY m.position
LIMIT %(limit)s

-- name: passes
-- The index begins with the consumer. The limit keeps each pass a step into it.
SELECT p.global_position, p.consumer, p.reason, p.passed_at
FROM reservation.groups g
CROSS JOIN unnest(%(positions)s::bigint[], %(ids)s::uuid[]) AS m (global_position, id)
CROSS JOIN LATERAL (
  SELECT p.* FROM reservation.passes p
  WHERE p.consumer = g.consumer AND p.category = g.category
    AND p.global_position = m.global_position AND p.message_id = m.id
  LIMIT 1
) AS p
ORDER BY p.global_position, p.consumer

-- name: scheduled
-- What is scheduled, or was cancelled, under an id or following from some messages, among so many rows.
SELECT reservation.causation(s.metadata), s.id, s.stream_name, s.type, s.due_at, s.scheduled_at,
       s.cancelled_at, s.attempts, s.attempt_at, s.error, s.dead_at
FROM (
  SELECT * FROM reservation.scheduled WHERE id = %(id)s::uuid
  UNION ALL
  SELECT * FROM (SELECT * FROM reservation.scheduled
                 WHERE cardinality(%(causes)s::bigint[]) > 0 LIMIT %(looked_at)s) AS found
  WHERE reservation.causation(found.metadata) = ANY (%(causes)s::bigint[])
) AS s
ORDER BY s.due_at, s.number
LIMIT %(limit)s

-- name: dealt_with
-- How far a consumer has dealt with the messages of a stream, and whether it is paused; no row if there is no such
-- consumer.
SELECT reservation.dealt_with_up_to(g.consumer, g.category, %(stream)s),
       EXISTS (SELECT FROM reservation.pauses p
               WHERE p.component = g.consumer AND coalesce(p.category, g.category) = g.category
                 AND p.type IS NULL AND p.entity IS NULL)
FROM reservation.groups g
WHERE g.consumer = %(consumer)s AND g.category = %(category)s
