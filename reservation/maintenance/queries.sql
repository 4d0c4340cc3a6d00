-- name: sample_settings
-- The planner is left no index but the right one.
SELECT set_config(name, 'off', true)
FROM unnest(ARRAY['enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'jit']) AS name

-- name: sample
-- Some messages at each of some places between the first message of a category and the last, and how
-- many bytes the data of each takes as it is stored.
WITH bounds AS (
  SELECT (SELECT m.global_position FROM message_store.messages m
          WHERE (message_store.category(m.stream_name), m.global_position)
                BETWEEN (%(category)s, 0) AND (%(category)s, 9223372036854775807)
          ORDER BY message_store.category(m.stream_name), m.global_position
          LIMIT 1) AS first,
         reservation.category_head(%(category)s) AS last
), places AS (
  SELECT DISTINCT first + ((last - first)::numeric * n / %(places)s)::bigint AS place, last
  FROM bounds, generate_series(0, %(places)s) AS n
  WHERE first IS NOT NULL
)
SELECT DISTINCT m.global_position, coalesce(pg_column_size(m.data), 0)
FROM places
CROSS JOIN LATERAL (
  SELECT m.* FROM message_store.messages m
  WHERE (message_store.category(m.stream_name), m.global_position)
        BETWEEN (%(category)s, place) AND (%(category)s, last)
  ORDER BY message_store.category(m.stream_name), m.global_position
  LIMIT %(at_each)s
) AS m
ORDER BY m.global_position

-- name: sample_types
-- The types of some messages at each of some places of a category, as above.
WITH bounds AS (
  SELECT (SELECT m.global_position FROM message_store.messages m
          WHERE (message_store.category(m.stream_name), m.global_position)
                BETWEEN (%(category)s, 0) AND (%(category)s, 9223372036854775807)
          ORDER BY message_store.category(m.stream_name), m.global_position
          LIMIT 1) AS first,
         reservation.category_head(%(category)s) AS last
), places AS (
  SELECT DISTINCT first + ((last - first)::numeric * n / %(places)s)::bigint AS place, last
  FROM bounds, generate_series(0, %(places)s) AS n
  WHERE first IS NOT NULL
)
SELECT m.type::text, min(m.global_position)
FROM places
CROSS JOIN LATERAL (
  SELECT m.type, m.global_position FROM message_store.messages m
  WHERE (message_store.category(m.stream_name), m.global_position)
        BETWEEN (%(category)s, place) AND (%(category)s, last)
  ORDER BY message_store.category(m.stream_name), m.global_position
  LIMIT %(at_each)s
) AS m
GROUP BY m.type
ORDER BY 2

-- name: misnamed
-- Looks at the next messages of a reservation category. Returns the position of the last of them, and
-- those of some whose stream has neither the name that the server makes of them nor the former.
SELECT max(m.global_position),
       (array_agg(m.global_position ORDER BY m.global_position)
          FILTER (WHERE m.position = 0 AND m.stream_name <> m.key_stream
                        AND m.stream_name <> former.key_stream))[1:100]
FROM reservation.read_commands(
       %(category)s, %(first)s::bigint, 9223372036854775807, %(limit)s, NULL, NULL, NULL,
       %(rules)s::jsonb) AS m
JOIN reservation.read_commands(
       %(category)s, %(first)s::bigint, 9223372036854775807, %(limit)s, NULL, NULL, NULL,
       %(former_rules)s::jsonb) AS former USING (global_position)

-- name: at_positions
SELECT m.id::varchar, m.stream_name::varchar, reservation.readable_type(m.type), m.position,
       m.global_position, reservation.readable_text(m.data), reservation.readable_text(m.metadata),
       reservation.readable_time(m.time)
FROM message_store.messages m
WHERE m.global_position = ANY (%s::bigint[])
ORDER BY m.global_position

-- name: out_of_order
-- The first message of a part of a category whose stream is not led by the id of its entity.
SELECT m.stream_name::text
FROM message_store.messages m
JOIN unnest(%(types)s::text[], %(keys)s::text[]) AS t(type, key) ON t.type = m.type
WHERE (message_store.category(m.stream_name), m.global_position)
      BETWEEN (%(category)s, %(after)s::bigint + 1) AND (%(category)s, 9223372036854775807)
  AND split_part(substr(m.stream_name, strpos(m.stream_name, '-') + 1), '+', 1)
      <> split_part(m.data->>t.key, '+', 1)
ORDER BY message_store.category(m.stream_name), m.global_position
LIMIT 1
