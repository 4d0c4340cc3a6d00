-- name: write_message
SELECT reservation.write_message(%s, %s, %s, %s, %s, %s)

-- name: write_messages
SELECT reservation.write_messages(%s, %s, %s, %s, %s, %s)

-- name: read_stream
SELECT id, stream_name, type, position, global_position, data, metadata, time
FROM reservation.read_stream(%s, %s, %s)

-- name: read_category
SELECT id, stream_name, type, position, global_position, data, metadata, time
FROM reservation.read_category(%s, %s, %s)

-- name: read_category_part
SELECT id, stream_name, type, position, global_position, data, metadata, time
FROM reservation.read_category_part(%s, %s, %s, %s, %s, %s)

-- name: read_part
SELECT id, stream_name, type, position, global_position, data, metadata, time
FROM reservation.read_part(%s, %s, %s, %s, %s::integer[], %s, %s::bigint[])

-- name: read_streams
SELECT id, stream_name, type, position, global_position, data, metadata, time
FROM reservation.read_streams(%s, %s)

-- name: last_message
SELECT id, stream_name, type, position, global_position, data, metadata, time
FROM reservation.last_message(%s, %s)

-- name: stream_version
-- Not the maximum, for which the planner may read a stream that it takes for a short one.
SELECT coalesce((
  SELECT position FROM message_store.messages WHERE stream_name OPERATOR(pg_catalog.=) %s
  ORDER BY position DESC LIMIT 1), -1)

-- name: lock_categories
SELECT reservation.lock_categories(%s)

-- name: stored_ids
SELECT id, stream_name FROM message_store.messages WHERE id OPERATOR(pg_catalog.=) ANY (%s)

-- name: outcome
SELECT state, reason, contents, notices,
       id, stream_name, type, position, global_position, data, metadata, time
FROM reservation.outcome(%s)
