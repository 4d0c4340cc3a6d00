-- name: write_batch
SELECT position
FROM reservation.write_messages(
  %s::uuid[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[]
)
ORDER BY ordinal

-- name: read_stream
SELECT id::text, stream_name, type, position, global_position, data::text, metadata::text, time
FROM message_store.messages
WHERE stream_name = %s AND position >= %s
ORDER BY position
LIMIT %s

-- name: read_category
SELECT id::text, stream_name, type, position, global_position, data::text, metadata::text, time
FROM message_store.messages
WHERE message_store.category(stream_name) = %s AND global_position >= %s
ORDER BY global_position
LIMIT %s

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
SELECT id::text, stream_name, type, position, global_position, data::text, metadata::text, time
FROM message_store.messages
WHERE stream_name = %(stream_name)s AND (%(type)s::text IS NULL OR type = %(type)s)
ORDER BY position DESC
LIMIT 1

-- name: stream_version
SELECT max(position) FROM message_store.messages WHERE stream_name = %s

-- name: lock_categories
SELECT reservation.lock_categories(%s::text[])

-- name: stored_ids
SELECT id FROM message_store.messages WHERE id = ANY (%s::uuid[])
