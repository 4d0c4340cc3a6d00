-- The columns of a pass `m` of `reservation.passes`, as those of a message that follows the one that was
-- passed. The others are null.

-- name: global_position
-m.global_position

-- name: position
0::bigint

-- name: stream_name
''::text

-- name: id
m.message_id::text

-- name: time
m.passed_at

-- name: causation
m.global_position
