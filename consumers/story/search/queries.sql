-- name: message
-- What is read of a message. Data that is large even when compressed is left in the server.
m.id::varchar, m.stream_name::varchar, m.type::varchar, m.position, m.global_position,
CASE WHEN pg_column_size(m.data) > 100000
     THEN '"too large to be shown: ' || pg_column_size(m.data) || ' bytes"'
     ELSE m.data::varchar END,
m.metadata::varchar, m.time

-- name: settings
-- The planner is left no way but the indexes.
SELECT set_config(name, value, true)
FROM (VALUES ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'),
             ('jit', 'off')) AS s (name, value)

-- name: timeout
-- A shorter limit of the role or the database stays.
SELECT set_config('statement_timeout', (%(milliseconds)s::int)::text, true)
WHERE (SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout') = 0
   OR (SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout') > %(milliseconds)s::int

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
-- The first message of each of some streams.
SELECT /* message */
FROM unnest(%(streams)s::text[]) AS s (name)
CROSS JOIN LATERAL (
  SELECT m.* FROM message_store.messages m
  WHERE m.stream_name = s.name
  ORDER BY m.position
  LIMIT 1
) AS m

-- name: of_stream
SELECT /* message */
FROM message_store.messages m
WHERE m.stream_name = %(stream)s AND m.position > %(after)s
ORDER BY m.position
LIMIT %(limit)s

-- name: categories
-- Each is found by a step in the index.
WITH RECURSIVE categories (category, n) AS (
  (SELECT message_store.category(m.stream_name), 1 FROM message_store.messages m
   ORDER BY message_store.category(m.stream_name) LIMIT 1)
  UNION ALL
  SELECT (SELECT message_store.category(m.stream_name) FROM message_store.messages m
          WHERE message_store.category(m.stream_name) > c.category
          ORDER BY message_store.category(m.stream_name) LIMIT 1), n + 1
  FROM categories c
  WHERE c.category IS NOT NULL AND n < %(limit)s
)
SELECT category FROM categories WHERE category IS NOT NULL

-- name: newest_of_category
SELECT m.stream_name::varchar
FROM message_store.messages m
WHERE (message_store.category(m.stream_name), m.global_position)
      BETWEEN (%(category)s, 0) AND (%(category)s, 9223372036854775807)
ORDER BY message_store.category(m.stream_name) DESC, m.global_position DESC
LIMIT %(limit)s

-- name: ending_with
-- The names of streams whose last ids are given: a walk through the whole index over names, which two
-- workers help with. The first condition is the quicker one.
WITH found AS MATERIALIZED (
  SELECT m.stream_name::varchar
  FROM message_store.messages m
  WHERE m.position = 0 AND strpos(m.stream_name, %(ending)s) > 0
    AND right(m.stream_name, length(%(ending)s)) = %(ending)s
)
SELECT found.stream_name FROM found ORDER BY found.stream_name LIMIT %(limit)s

-- name: reservations_of_type
-- Of each category some first and some last messages that are copies of a command of a type, with the
-- stream and the data of that command.
SELECT c.category, copy.stream_name::varchar, cause.stream_name::varchar, cause.data::varchar
FROM unnest(%(categories)s::text[]) AS c (category)
CROSS JOIN LATERAL (
  (SELECT m.stream_name, m.position, m.type, m.metadata
   FROM message_store.messages m
   WHERE (message_store.category(m.stream_name), m.global_position)
         BETWEEN (c.category, 0) AND (c.category, 9223372036854775807)
   ORDER BY message_store.category(m.stream_name), m.global_position
   LIMIT %(limit)s)
  UNION ALL
  (SELECT m.stream_name, m.position, m.type, m.metadata
   FROM message_store.messages m
   WHERE (message_store.category(m.stream_name), m.global_position)
         BETWEEN (c.category, 0) AND (c.category, 9223372036854775807)
   ORDER BY message_store.category(m.stream_name) DESC, m.global_position DESC
   LIMIT %(limit)s)
) AS copy
CROSS JOIN LATERAL (
  SELECT m.stream_name, m.type, m.data
  FROM message_store.messages m
  WHERE m.global_position = reservation.causation(copy.metadata)
  LIMIT 1
) AS cause
WHERE copy.position = 0 AND copy.type = %(type)s AND cause.type = copy.type

-- name: following_in_streams
-- Of some streams, what follows from some messages, among the next messages after one.
SELECT /* message */
FROM unnest(%(streams)s::text[]) AS s (name)
CROSS JOIN LATERAL (
  SELECT m.* FROM message_store.messages m
  WHERE m.stream_name = s.name AND m.position >= reservation.first_after(s.name, %(first)s)
  ORDER BY m.position
  LIMIT %(looked_at)s
) AS m
WHERE reservation.causation(m.metadata) = ANY (%(causes)s::bigint[])
ORDER BY m.global_position
LIMIT %(limit)s

-- name: following
-- Of a part of the log, what follows from some messages, from what follows from these, and so on; or
-- belongs to a correlation.
WITH RECURSIVE near AS MATERIALIZED (
  SELECT m.global_position, m.metadata->>'causationMessageGlobalPosition' AS cause
  FROM message_store.messages m
  WHERE m.global_position > %(after)s AND m.global_position <= %(until)s
    AND m.metadata->'causationMessageGlobalPosition' IS NOT NULL
), found (global_position) AS (
  SELECT unnest(%(causes)s::bigint[])
  UNION
  SELECT near.global_position FROM found JOIN near ON near.cause = found.global_position::text
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

-- name: correlated
SELECT /* message */
FROM message_store.messages m
WHERE m.global_position > %(after)s AND m.global_position <= %(until)s
  AND m.metadata->>'correlationStreamName' = %(correlation)s
ORDER BY m.global_position
LIMIT %(limit)s

-- name: with_key_in_stream
-- Messages of a stream in whose data each part of a key is the value of one of some fields.
SELECT /* message */
FROM (
  SELECT m.* FROM message_store.messages m
  WHERE m.stream_name = %(stream)s AND m.position > %(after)s
  ORDER BY m.position
  LIMIT %(looked_at)s
) AS m
WHERE NOT EXISTS (
  SELECT FROM unnest(%(parts)s::text[]) AS p (part)
  WHERE NOT EXISTS (SELECT FROM unnest(%(fields)s::text[]) AS f (field) WHERE m.data->>field = part))
ORDER BY m.position
LIMIT %(limit)s

-- name: with_key
-- The same of a part of a category. Both ends are of one column, so whichever index is taken ends there.
SELECT /* message */
FROM message_store.messages m
WHERE message_store.category(m.stream_name) = %(category)s
  AND m.global_position > %(after)s AND m.global_position <= %(until)s
  AND NOT EXISTS (
    SELECT FROM unnest(%(parts)s::text[]) AS p (part)
    WHERE NOT EXISTS (
      SELECT FROM unnest(%(fields)s::text[]) AS f (field) WHERE m.data->>field = part))
ORDER BY m.global_position
LIMIT %(limit)s

-- name: holding
-- The newest messages that have a text as the value of one of their fields.
SELECT /* message */
FROM message_store.messages m
WHERE m.global_position > %(after)s AND jsonb_typeof(m.data) = 'object'
  AND EXISTS (SELECT FROM jsonb_each_text(m.data) AS f WHERE f.value = %(value)s)
ORDER BY m.global_position DESC
LIMIT %(limit)s

-- name: letters
-- The dead letters of some messages, each by its key.
SELECT d.consumer, d.category, d.global_position
FROM reservation.groups g
JOIN reservation.dead_letters d
  ON d.consumer = g.consumer AND d.category = g.category
 AND d.global_position = ANY (%(positions)s::bigint[])
ORDER BY d.global_position, d.consumer, d.category
LIMIT %(limit)s

-- name: conflicts_of_stream
-- The positions of the commands of a stream that were in conflict.
SELECT d.global_position
FROM reservation.dead_letters d
WHERE d.stream_name = %(stream)s AND d.category = %(category)s AND d.reason = 'conflict'
LIMIT %(limit)s

-- name: corrections
SELECT k.correction
FROM reservation.corrections k
WHERE k.global_position = ANY (%(positions)s::bigint[])
ORDER BY k.correction
LIMIT %(limit)s

-- name: passes
-- The index begins with the consumer. The limit keeps each pass a step into it.
SELECT p.global_position, p.consumer, p.category, p.reason, p.passed_at
FROM reservation.groups g
CROSS JOIN unnest(%(positions)s::bigint[], %(ids)s::uuid[]) AS m (global_position, id)
CROSS JOIN LATERAL (
  SELECT p.* FROM reservation.passes p
  WHERE p.consumer = g.consumer AND p.category = g.category
    AND p.global_position = m.global_position AND p.message_id = m.id
  LIMIT 1
) AS p
ORDER BY p.global_position, p.consumer
LIMIT %(limit)s

-- name: scheduled_by
-- What is scheduled, or was cancelled, that follows from some messages; of so many rows.
SELECT reservation.causation(s.metadata), s.metadata::varchar, s.id, s.stream_name, s.type, s.due_at,
       s.scheduled_at, s.cancelled_at, s.attempts, s.attempt_at, s.error
FROM (SELECT * FROM reservation.scheduled LIMIT %(looked_at)s) AS s
WHERE reservation.causation(s.metadata) = ANY (%(causes)s::bigint[])
ORDER BY s.due_at, s.number
LIMIT %(limit)s

-- name: scheduled_by_id
SELECT reservation.causation(s.metadata), s.metadata::varchar, s.id, s.stream_name, s.type, s.due_at,
       s.scheduled_at, s.cancelled_at, s.attempts, s.attempt_at, s.error
FROM reservation.scheduled s
WHERE s.id = %(id)s::uuid

-- name: requests
-- The HTTP requests of some ids; each role has its own, and is found by a step in the index.
WITH RECURSIVE roles (role) AS (
  SELECT min(r.role) FROM reservation.http_requests r
  UNION ALL
  SELECT (SELECT min(r.role) FROM reservation.http_requests r WHERE r.role > roles.role)
  FROM roles WHERE roles.role IS NOT NULL
)
SELECT r.id, r.created_at, r.answered_at, r.status, r.parked IS NOT NULL
FROM roles
JOIN reservation.http_requests r ON r.role = roles.role AND r.id = ANY (%(ids)s::uuid[])
ORDER BY r.created_at

-- name: dealt_with
-- How far a consumer has dealt with the messages of a stream, and whether there is one.
SELECT reservation.dealt_with_up_to(%(consumer)s, %(category)s, %(stream)s), EXISTS (
  SELECT FROM reservation.groups g
  WHERE g.consumer = %(consumer)s AND g.category = %(category)s)

-- name: processed
-- The messages that were processed under a key, of each handler that remembers keys. The index begins with
-- the handler. The limit keeps each handler a step into it.
SELECT p.global_position
FROM reservation.processed_handlers h
CROSS JOIN LATERAL (
  SELECT p.global_position FROM reservation.processed_messages p
  WHERE p.handler = h.handler AND p.key = %(key)s
  ORDER BY p.global_position
  LIMIT 10
) AS p
ORDER BY p.global_position
LIMIT 10
