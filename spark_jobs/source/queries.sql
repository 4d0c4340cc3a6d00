-- name: export_snapshot
SELECT pg_export_snapshot(), now()

-- name: positions
-- The position of each partition, and of those that there were before; no row where no consumer of ours
-- has run, and nobody has set its position; and the highest that was taken in another log.
SELECT array_agg(p.position ORDER BY p.partition), g.carried, g.first_position,
       CASE WHEN reservation.carries_foreign(p.consumer, p.category) THEN max(p.position)
            ELSE max(p.position) FILTER (WHERE reservation.is_foreign(p.position, p.message_id)) END
FROM reservation.positions p
LEFT JOIN reservation.groups g USING (consumer, category)
WHERE p.consumer = %s AND p.category = %s
GROUP BY p.consumer, p.category, g.carried, g.first_position
HAVING max(p.epoch) > 0 OR max(p.position) > 0

-- name: letters
-- What the consumer has not dealt with; and what it took for a conflict, whatever became of that. A
-- letter of another log, at whose position there is another message now, is none of this one.
SELECT d.global_position, d.reason = 'conflict' FROM reservation.dead_letters d
WHERE d.consumer = %s AND d.category = %s AND (d.state <> 'handled' OR d.reason = 'conflict')
  AND NOT EXISTS (
    SELECT FROM message_store.messages m
    WHERE m.global_position = d.global_position AND m.id <> d.message_id)

-- name: settings
-- What the reads rely on, whatever a role or a database has set; and the server would rather compile
-- than read. With row_security off, a policy that would hide messages is an error.
SELECT pg_catalog.set_config(s.name, wanted.value, true)
FROM (VALUES
  ('jit', 'off'),
  ('row_security', 'off'),
  ('search_path', 'pg_catalog, pg_temp'),
  ('DateStyle', 'ISO'),
  ('IntervalStyle', 'postgres'),
  ('standard_conforming_strings', 'on'),
  ('statement_timeout', '0'),
  ('lock_timeout', '0'),
  ('transaction_timeout', '0'),
  ('idle_in_transaction_session_timeout', '0')
) AS wanted (name, value)
JOIN pg_catalog.pg_settings s ON s.name OPERATOR(pg_catalog.=) wanted.name

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

-- name: tally
-- How many messages there are in a part of a category, and the sum of their global positions.
SELECT count(*), coalesce(mod(sum(m.global_position), %(modulus)s), 0)::bigint
FROM message_store.messages m
WHERE (message_store.category(m.stream_name), m.global_position)
      BETWEEN (%(category)s, %(first)s) AND (%(category)s, %(last)s)

-- name: tallies
-- The same of what several categories begin with, in one pass.
SELECT part.category, count(m.global_position),
       coalesce(mod(sum(m.global_position), %(modulus)s), 0)::bigint
FROM unnest(%(categories)s::text[], %(lasts)s::bigint[]) AS part(category, last)
LEFT JOIN message_store.messages m
  ON message_store.category(m.stream_name) = part.category AND m.global_position <= part.last
GROUP BY part.category

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
