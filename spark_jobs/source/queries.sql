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
  SELECT sampled.global_position
  FROM unnest(%(categories)s::text[], %(first)s::bigint[], %(last)s::bigint[])
         AS part(category, first, last)
  CROSS JOIN LATERAL (
    SELECT m.global_position FROM message_store.messages m
    WHERE (message_store.category(m.stream_name), m.global_position)
          BETWEEN (part.category, part.first) AND (part.category, part.last)
    ORDER BY message_store.category(m.stream_name), m.global_position
    LIMIT %(rows)s
  ) AS sampled
  ORDER BY sampled.global_position
  LIMIT %(rows)s
) AS of

-- name: messages
SELECT {columns}
FROM (
  SELECT m.*, reservation.readable_text(m.kept)::text AS kept_text
  FROM (
    SELECT m.*, {kept} AS kept
    FROM message_store.messages m
    WHERE {where} AND {chosen}
    OFFSET 0
  ) AS m
  OFFSET 0
) AS m

-- name: of_category
-- The messages of one category.
message_store.category(m.stream_name) = {category}

-- name: of_categories
-- The messages of several categories.
message_store.category(m.stream_name) = ANY ({categories})

-- name: in_range
m.global_position BETWEEN {first} AND {last}

-- name: at_positions
m.global_position = ANY ({positions}::bigint[])

-- name: in_streams
-- The messages of some streams in a range.
m.stream_name = ANY ({streams}::varchar[]) AND m.global_position BETWEEN {first} AND {last}

-- name: category_of
message_store.category(m.stream_name)

-- name: is_foreign_store
-- Whether the store was installed by Message DB, and has no schema but its own.
SELECT to_regnamespace('reservation') IS NULL
