-- name: write_batch
SELECT position
FROM reservation.write_messages(
  %s::uuid[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[]
)
ORDER BY ordinal

-- name: read_stream
SELECT id, stream_name, type, position, global_position, data, metadata, time
FROM message_store.get_stream_messages(%s::varchar, %s::bigint, %s::bigint)

-- name: read_category
SELECT id, stream_name, type, position, global_position, data, metadata, time
FROM message_store.get_category_messages(%s::varchar, %s::bigint, %s::bigint)

-- name: read_streams
SELECT m.id::text, m.stream_name, m.type, m.position, m.global_position,
       m.data::text, m.metadata::text, m.time
FROM unnest(%s::text[], %s::bigint[]) WITH ORDINALITY AS s(stream_name, position, n)
CROSS JOIN LATERAL (
  SELECT * FROM message_store.messages m
  WHERE m.stream_name = s.stream_name AND m.position >= s.position
) AS m
ORDER BY s.n, m.position

-- name: last_message
SELECT id, stream_name, type, position, global_position, data, metadata, time
FROM message_store.get_last_stream_message(%s::varchar, %s::varchar)

-- name: stream_version
SELECT message_store.stream_version(%s::varchar)

-- name: lock_categories
SELECT reservation.lock_categories(%s::text[])
