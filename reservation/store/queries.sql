-- name: write_message
SELECT position, global_position FROM reservation.write_message(%s, %s, %s, %s, %s, %s)

-- name: write_messages
SELECT positions, global_positions FROM reservation.write_messages(%s, %s, %s, %s, %s, %s)

-- name: write_message_or_fail
-- For a transaction that is committed without a look at the answer.
SELECT reservation.check_positions(
  ARRAY[(reservation.write_message(%s, %s, %s, %s, %s, %s)).position], %s)

-- name: write_messages_or_fail
-- The same for several messages.
SELECT reservation.check_positions(
  (reservation.write_messages(%s, %s, %s, %s, %s, %s)).positions, %s)

-- name: write_each
SELECT positions, global_positions FROM reservation.write_each(%s, %s, %s, %s, %s, %s)

-- name: commit_message
CALL reservation.commit_message(%s, %s, %s, %s, %s, %s)

-- name: commit_messages
CALL reservation.commit_messages(%s, %s, %s, %s, %s, %s)

-- name: commit_each
CALL reservation.commit_each(%s, %s, %s, %s, %s, %s)

-- name: flush
SELECT reservation.flush_with_commit()

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
FROM reservation.read_part(%s, %s, %s, %s, %s::integer[], %s, %s::bigint[], %s)

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
SELECT state, reason, corrected, contents, notices,
       id, stream_name, type, position, global_position, data, metadata, time
FROM reservation.outcome(%s)

-- name: schedule_messages
SELECT reservation.schedule_messages(%s, %s, %s, %s, %s, %s::timestamptz[])

-- name: schedule_message
SELECT reservation.schedule_message(%s, %s, %s, %s, %s, %s::timestamptz, %s::interval)

-- name: cancel_scheduled
SELECT reservation.cancel_scheduled(%s)

-- name: retry_scheduled
UPDATE reservation.scheduled SET dead_at = NULL, attempts = 0, attempt_at = clock_timestamp()
WHERE id = ANY (%s) AND cancelled_at IS NULL AND dead_at IS NOT NULL
RETURNING id

-- name: write_scheduled
SELECT written, refused, next_in FROM reservation.write_scheduled(%s)

-- name: bring_forward
UPDATE reservation.scheduled
SET due_at = greatest(pg_catalog.timestamptz_mi_interval(due_at, %(span)s), '1970-01-01 00:00:00+00'),
    attempt_at = pg_catalog.timestamptz_mi_interval(attempt_at, %(span)s)
WHERE cancelled_at IS NULL AND dead_at IS NULL
RETURNING id

-- name: count_scheduled
SELECT count(*)
FROM (SELECT FROM reservation.scheduled WHERE cancelled_at IS NULL LIMIT %s) AS s
