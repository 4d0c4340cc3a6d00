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

-- name: bounds
-- The first and last global position of a category, each one step into the index.
SELECT (SELECT global_position FROM message_store.messages
        WHERE message_store.category(stream_name) = %(category)s
        ORDER BY global_position LIMIT 1),
       (SELECT global_position FROM message_store.messages
        WHERE message_store.category(stream_name) = %(category)s
        ORDER BY global_position DESC LIMIT 1)

-- name: messages
-- A range of a category. `declared` says per command type how its key is made: the stream that the
-- key names is computed here, so that the payload stays in the server; only where the key is a
-- function, or has a default that the data may leave out, does it travel. Of types that are reserved
-- `within` the command category, it holds the copies too. `content` stands for the
-- data less the volatile fields: jsonb's own hash under two seeds, and the shape of what is nested,
-- equal where jsonb calls two values equal, as the consumers do.
SELECT m.global_position, m.position, m.stream_name, m.type, m.id::text AS id,
       CASE WHEN m.metadata->>'causationMessageGlobalPosition' ~ '^[0-9]{1,18}$'
            THEN (m.metadata->>'causationMessageGlobalPosition')::bigint
       END AS causation,
       d.category AS key_category,
       (
         SELECT CASE WHEN bool_and(part.usable)
                     THEN CASE WHEN NOT d.within THEN d.category || '-'
                               WHEN strpos(m.stream_name, '-') = 0 THEN m.stream_name || '-'
                               ELSE m.stream_name || '+' END
                          || string_agg(part.value, '+' ORDER BY part.n) END
         FROM (
           SELECT f.n, m.data->>f.name AS value,
                  CASE jsonb_typeof(m.data->f.name)
                    WHEN 'string' THEN m.data->>f.name <> ''
                      AND (f.n = cardinality(d.fields) AND NOT d.within OR strpos(m.data->>f.name, '+') = 0)
                    WHEN 'number' THEN (m.data->>f.name)::numeric %% 1 = 0
                    ELSE false
                  END AS usable
           FROM unnest(d.fields) WITH ORDINALITY AS f(name, n)
         ) AS part
       ) AS key_stream,
       coalesce(d.within AND m.metadata->'localProperties'->'reserved' = 'true', false) AS is_copy,
       CASE WHEN d.by_function THEN m.data::text END AS function_data,
       hashes.one::text || ',' || hashes.other::text || ',' || hashes.shape AS content
FROM message_store.messages m
LEFT JOIN unnest(%(types)s::text[], %(categories)s::text[], %(fields)s::text[],
                 %(volatile)s::text[], %(by_function)s::boolean[], %(within)s::boolean[])
          AS declared(type, category, fields_json, volatile_json, by_function, within)
  ON declared.type = m.type
CROSS JOIN LATERAL (
  SELECT declared.category, declared.by_function, declared.within,
         ARRAY(SELECT jsonb_array_elements_text(declared.fields_json::jsonb)) AS fields,
         ARRAY(SELECT jsonb_array_elements_text(declared.volatile_json::jsonb)) AS volatile
) AS d
CROSS JOIN LATERAL (
  SELECT CASE WHEN jsonb_typeof(m.data) = 'object' THEN m.data - d.volatile
              ELSE coalesce(m.data, 'null') END AS data
) AS kept
CROSS JOIN LATERAL (
  SELECT jsonb_hash_extended(kept.data, 0) AS one, jsonb_hash_extended(kept.data, 1) AS other,
         -- The hash does not tell where a container within ends: [["a","b"]] from [["a"],"b"].
         CASE WHEN translate(substr(kept.data::text, 2), '{[', '') = substr(kept.data::text, 2)
              THEN ''
              ELSE md5(regexp_replace(
                     regexp_replace(kept.data::text, '"(?:[^"\\]|\\.)*"', 's', 'g'),
                     '[-+.0-9eE]*[0-9][-+.0-9eE]*', 'n', 'g'))
         END AS shape
) AS hashes
WHERE message_store.category(m.stream_name) = %(category)s
  AND m.global_position BETWEEN %(first)s AND %(last)s
