-- name: record
-- What is decided about letters, in the transaction that changes them.
INSERT INTO reservation.letter_decisions (
  consumer, category, global_position, message_id, decision, former_state, reason, on_behalf_of, request)
SELECT l.consumer, l.category, l.global_position, l.message_id, %(decision)s, l.former_state, %(reason)s,
       %(on_behalf_of)s, %(request)s
FROM unnest(
  %(consumers)s::text[], %(categories)s::text[], %(global_positions)s::bigint[], %(message_ids)s::uuid[],
  %(former_states)s::text[]
) WITH ORDINALITY AS l (consumer, category, global_position, message_id, former_state, n)
ORDER BY l.n

-- name: of_letter
-- The last decisions about a letter, the last one first.
SELECT h.decision, h.former_state, h.reason, h.on_behalf_of, h.decided_by, h.decided_at
FROM reservation.letter_decisions h
WHERE h.consumer = %(consumer)s AND h.category = %(category)s
  AND h.global_position = %(global_position)s AND h.message_id = %(message_id)s::uuid
ORDER BY h.number DESC
LIMIT %(limit)s

-- name: of_request
-- What was decided at once: about how many letters, and about the first of them.
SELECT h.decision, count(*), min(h.consumer), min(h.category), min(h.global_position)
FROM reservation.letter_decisions h
WHERE h.request = %(request)s
GROUP BY h.decision
