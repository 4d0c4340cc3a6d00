-- name: reserve
SELECT ordinal, outcome FROM reservation.reserve(%s, %s, %s, %s::text[], %s::jsonb[])

-- name: compare_initiations
SELECT ordinal, outcome FROM reservation.compare_initiations(%s, %s, %s, %s::jsonb[])
ORDER BY ordinal

-- name: read_commands
SELECT id, stream_name, type, position, global_position, data, metadata, time, key_stream
FROM reservation.read_commands(%s, %s, %s, %s, %s::integer[], %s, %s::bigint[], %s)
