-- name: may_correct
SELECT current_user::text, coalesce(has_function_privilege(
  to_regprocedure('reservation.correct(text, text, bigint, jsonb, text, text[])'), 'EXECUTE'), false)

-- name: message
SELECT m.id::varchar, m.stream_name::varchar, m.type::varchar, m.position, m.global_position,
       m.data::varchar, m.metadata::varchar, m.time
FROM message_store.messages m
WHERE m.global_position = %(global_position)s AND m.id = %(message_id)s::uuid

-- name: correct
SELECT correction, corrections
FROM reservation.correct(
  %(consumer)s, %(category)s, %(global_position)s, %(corrected)s::jsonb, %(reason)s,
  %(not_compared)s)

-- name: as_stored
SELECT (%(data)s::jsonb)::varchar
