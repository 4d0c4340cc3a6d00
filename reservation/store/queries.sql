-- name: write_batch
SELECT position
FROM reservation.write_messages(
  %s::uuid[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[]
)
ORDER BY ordinal

-- name: read_stream
SELECT id, stream_name, type, position, global_position, data, metadata, time
FROM reservation.read_stream(%s, %s, %s)

-- name: read_category
SELECT id, stream_name, type, position, global_position, data, metadata, time
FROM reservation.read_category(%s, %s, %s)

-- name: read_streams
SELECT id, stream_name, type, position, global_position, data, metadata, time
FROM reservation.read_streams(%s, %s)

-- name: last_message
SELECT id, stream_name, type, position, global_position, data, metadata, time
FROM reservation.last_message(%s, %s)

-- name: stream_version
SELECT max(position) FROM message_store.messages WHERE stream_name = %s

-- name: lock_categories
SELECT reservation.lock_categories(%s::text[])

-- name: stored_ids
SELECT id FROM message_store.messages WHERE id = ANY (%s::uuid[])
