-- name: count
-- A dead letter or a pass counts if its message is not in the log.
SELECT 'processed messages', count(*)
FROM reservation.processed_messages m
JOIN reservation.processed_handlers h USING (handler)
WHERE h.consumer = %(consumer)s
UNION ALL
SELECT 'revisions', count(*) FROM reservation.revisions WHERE consumer = %(consumer)s
UNION ALL
SELECT 'versions of states', count(*) FROM reservation.states
WHERE stream_name >= %(first)s AND stream_name < %(bound)s
UNION ALL
SELECT 'dead letters', count(*) FROM reservation.dead_letters d
WHERE d.consumer = %(consumer)s AND NOT EXISTS (
  SELECT FROM message_store.messages m
  WHERE m.global_position = d.global_position AND m.id = d.message_id)
UNION ALL
SELECT 'passes', count(*) FROM reservation.passes p
WHERE p.consumer = %(consumer)s AND NOT EXISTS (
  SELECT FROM message_store.messages m
  WHERE m.global_position = p.global_position AND m.id = p.message_id)

-- name: forget_processed
DELETE FROM reservation.processed_messages m
USING reservation.processed_handlers h
WHERE m.handler = h.handler AND h.consumer = %(consumer)s

-- name: forget_dropped
-- The days that were dropped are no more than the others: all messages are read again.
UPDATE reservation.processed_handlers SET dropped_until = NULL WHERE consumer = %(consumer)s

-- name: forget_revisions
DELETE FROM reservation.revisions WHERE consumer = %(consumer)s

-- name: forget_states
DELETE FROM reservation.states WHERE stream_name >= %(first)s AND stream_name < %(bound)s

-- name: forget_horizons
DELETE FROM reservation.state_horizons WHERE stream_name >= %(first)s AND stream_name < %(bound)s

-- name: forget_letters
DELETE FROM reservation.dead_letters d
WHERE d.consumer = %(consumer)s AND NOT EXISTS (
  SELECT FROM message_store.messages m
  WHERE m.global_position = d.global_position AND m.id = d.message_id)

-- name: forget_passes
DELETE FROM reservation.passes p
WHERE p.consumer = %(consumer)s AND NOT EXISTS (
  SELECT FROM message_store.messages m
  WHERE m.global_position = p.global_position AND m.id = p.message_id)
