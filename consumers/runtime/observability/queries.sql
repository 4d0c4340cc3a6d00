-- name: sent_in
-- The contexts in which these commands were sent, in their order.
SELECT m.metadata->'properties'->>'traceparent', m.metadata->'properties'->>'tracestate'
FROM unnest(%s::bigint[]) WITH ORDINALITY AS i(global_position, n)
LEFT JOIN message_store.messages AS m ON m.global_position = i.global_position
ORDER BY i.n
