-- name: export_snapshot
SELECT pg_export_snapshot(), now()

-- name: position
-- Up to where everything was dealt with; no row where nothing was.
SELECT min(position) FROM reservation.positions
WHERE consumer = %s AND category = %s
HAVING count(*) > 0

-- name: letters
-- A conflict is told by the commands themselves.
SELECT global_position FROM reservation.dead_letters
WHERE consumer = %s AND category = %s AND state <> 'handled' AND reason <> 'conflict'

-- name: settings
-- The server would rather compile than read.
SET LOCAL jit = off

-- name: bounds
-- The first and last global position of a category, each one step into the index.
SELECT (SELECT m.global_position FROM message_store.messages m
        WHERE (message_store.category(m.stream_name), m.global_position)
              BETWEEN (%(category)s, %(first)s) AND (%(category)s, %(last)s)
        ORDER BY message_store.category(m.stream_name), m.global_position LIMIT 1),
       (SELECT m.global_position FROM message_store.messages m
        WHERE (message_store.category(m.stream_name), m.global_position)
              BETWEEN (%(category)s, %(first)s) AND (%(category)s, %(last)s)
        ORDER BY message_store.category(m.stream_name) DESC, m.global_position DESC LIMIT 1)

-- name: pages
-- How many pages the log has.
SELECT pg_catalog.pg_relation_size('message_store.messages') / current_setting('block_size')::integer

-- name: sample
-- Where the messages of categories are, by some of the pages of the log.
SELECT m.global_position FROM message_store.messages m TABLESAMPLE SYSTEM (%(percent)s) REPEATABLE (1)
WHERE message_store.category(m.stream_name) = ANY (%(categories)s)
  AND m.global_position BETWEEN %(first)s AND %(last)s
ORDER BY m.global_position

-- name: every_position
-- The same, by all of their messages.
SELECT m.global_position FROM message_store.messages m
WHERE message_store.category(m.stream_name) = ANY (%(categories)s)
  AND m.global_position BETWEEN %(first)s AND %(last)s
ORDER BY m.global_position

-- name: limited
-- The global position up to which parts of categories hold so many messages together. Of each no more
-- is looked at than could be needed.
SELECT max(of.global_position) FROM (
  SELECT few.global_position
  FROM unnest(%(categories)s::text[], %(first)s::bigint[], %(last)s::bigint[])
         AS part(category, first, last)
  CROSS JOIN LATERAL (
    SELECT m.global_position FROM message_store.messages m
    WHERE (message_store.category(m.stream_name), m.global_position)
          BETWEEN (part.category, part.first) AND (part.category, part.last)
    ORDER BY message_store.category(m.stream_name), m.global_position
    LIMIT %(rows)s
  ) AS few
  ORDER BY few.global_position
  LIMIT %(rows)s
) AS of

-- name: messages
SELECT {columns}
FROM (
  SELECT m.*, m.kept::text AS kept_text
  FROM (
    SELECT m.*, {kept} AS kept
    FROM message_store.messages m
    WHERE {where}
    OFFSET 0
  ) AS m
  OFFSET 0
) AS m

-- name: of_range
-- Those of a range of a category.
message_store.category(m.stream_name) = {category} AND m.global_position BETWEEN {first} AND {last}

-- name: of_positions
-- Those at some global positions, if they are in some categories.
m.global_position = ANY ({positions}::bigint[])
      AND message_store.category(m.stream_name) = ANY ({categories})
      AND (m.position = 0 OR NOT message_store.category(m.stream_name) = ANY ({firsts_of}))

-- name: category_of
message_store.category(m.stream_name)

-- name: position_of_eventide
-- The lowest of the positions that the consumers of a category stored, each in a stream of its own; a
-- stream whose last message holds no position says that nothing was read.
SELECT min(last.position) FROM (
  SELECT DISTINCT ON (m.stream_name)
         CASE WHEN m.data->>'position' ~ '^[0-9]{1,18}$' THEN (m.data->>'position')::bigint
              ELSE 0 END AS position
  FROM message_store.messages m
  WHERE message_store.category(m.stream_name) = %(category)s
  ORDER BY m.stream_name, m.position DESC
) AS last

-- name: head
SELECT m.global_position, m.id FROM message_store.messages m
WHERE (message_store.category(m.stream_name), m.global_position)
      BETWEEN (%(category)s, 0) AND (%(category)s, 9223372036854775807)
ORDER BY message_store.category(m.stream_name) DESC, m.global_position DESC LIMIT 1

-- name: holds
SELECT FROM message_store.messages m WHERE m.global_position = %(global_position)s AND m.id = %(id)s::uuid

-- name: older
-- The last message before the first one that is not older, of a part of a category.
SELECT m.global_position, m.id FROM message_store.messages m
WHERE (message_store.category(m.stream_name), m.global_position)
      BETWEEN (%(category)s, %(first)s)
      AND (%(category)s, coalesce((
        SELECT younger.global_position - 1 FROM message_store.messages younger
        WHERE (message_store.category(younger.stream_name), younger.global_position)
              BETWEEN (%(category)s, %(first)s) AND (%(category)s, %(last)s)
          AND younger.time >= %(before)s
        ORDER BY message_store.category(younger.stream_name), younger.global_position LIMIT 1
      ), %(last)s))
ORDER BY message_store.category(m.stream_name) DESC, m.global_position DESC LIMIT 1

-- name: sums
-- By day: how many messages there are, the first and the last, and the sums of two parts of their hashes.
SELECT to_char(m.time AT TIME ZONE 'UTC', 'YYYY-MM-DD'), count(*), min(m.global_position),
       max(m.global_position), sum(('x' || substr(m.hash, 1, 15))::bit(60)::bigint),
       sum(('x' || substr(m.hash, 16, 15))::bit(60)::bigint)
FROM (
  SELECT m.time, m.global_position,
         encode(sha256(convert_to(concat({columns}), 'UTF8')), 'hex') AS hash
  FROM ({messages}) AS m
  OFFSET 0
) AS m
GROUP BY 1

-- name: hashed
-- A column as it is hashed: its length before it, so that nothing can pass from one into the next.
coalesce(length({value}) || ':' || {value}, '-')

-- name: hashed_time
(extract(epoch FROM m.time) * 1000000)::bigint::text

-- name: hashed_value
m.{column}::text
