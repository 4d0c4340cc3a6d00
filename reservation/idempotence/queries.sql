-- name: reserve
SELECT outcome
FROM reservation.reserve(%s::bigint[], %s::text[], %s::jsonb)
ORDER BY ordinal

-- name: compare_initiations
-- Each command beside the command that the first message of its entity's stream follows.
SELECT CASE WHEN (cause.type, reservation.content(cause.data, v.fields))
                 IS NOT DISTINCT FROM (command.type, reservation.content(command.data, v.fields))
            THEN 'duplicate' ELSE 'conflict' END
FROM unnest(%s::bigint[], %s::text[]) WITH ORDINALITY AS c(global_position, stream_name, n)
JOIN message_store.messages command ON command.global_position = c.global_position
LEFT JOIN message_store.messages first
  ON first.stream_name = c.stream_name AND first.position = 0
LEFT JOIN message_store.messages cause
  ON cause.global_position = reservation.causation(first.metadata)
CROSS JOIN LATERAL (SELECT reservation.volatile_fields(%s::jsonb, command.type)) AS v(fields)
ORDER BY c.n
