-- name: lock_letters
SELECT pg_advisory_xact_lock(hashtextextended('reservation.dead_letters', 0))

-- name: letters
-- All that is shown of letters, wherever they come from.
SELECT d.consumer, d.category, d.global_position, d.message_id::text, d.stream_name, d.type, d.entity,
       d.state, d.reason, d.error, d.error_type, d.error_place, d.digest, d.attempts, d.process, d.created_at, d.changed_at,
       d.correction IS NOT NULL,
       d.next_attempt_at,
       CASE WHEN d.state = 'parked' THEN (
         SELECT min(h.global_position)
         FROM reservation.dead_letters h
         WHERE h.consumer = d.consumer AND h.category = d.category AND h.entity = d.entity
           AND h.state IN ('waiting', 'parked', 'dead')
       ) END
FROM {letters} d
ORDER BY d.consumer, d.category, d.global_position

-- name: chosen
(SELECT d.* FROM reservation.dead_letters d
WHERE (%(consumer)s::text IS NULL OR d.consumer = %(consumer)s)
  AND (%(category)s::text IS NULL OR d.category = %(category)s)
  AND (%(entity)s::text IS NULL OR d.entity = %(entity)s)
  AND CASE
        WHEN %(needs_person)s THEN d.state = 'dead' OR d.state = 'parked' AND EXISTS (
          SELECT FROM reservation.dead_letters h
          WHERE h.consumer = d.consumer AND h.category = d.category AND h.entity = d.entity
            AND h.global_position < d.global_position AND h.state = 'dead')
        ELSE %(states)s::text[] IS NULL OR d.state = ANY(%(states)s) END
  AND (%(global_positions)s::bigint[] IS NULL OR d.global_position = ANY(%(global_positions)s)))

-- name: count_waiting
SELECT count(*)
FROM reservation.dead_letters
WHERE consumer = %(consumer)s AND category = %(category)s AND entity = ANY(%(entities)s)
  AND state = 'parked'

-- name: change_state
UPDATE reservation.dead_letters
SET state = %(state)s, attempts = CASE %(state)s WHEN 'waiting' THEN 0 ELSE attempts END,
    next_attempt_at = CASE %(state)s WHEN 'waiting' THEN clock_timestamp() END,
    changed_at = clock_timestamp()
WHERE consumer = %(consumer)s AND category = %(category)s
  AND global_position = ANY(%(global_positions)s)

-- name: message
SELECT reservation.readable_text(m.data), reservation.readable_text(m.metadata),
       reservation.readable_time(m.time), m.position
FROM message_store.messages m
WHERE m.global_position = %(global_position)s AND m.id = %(message_id)s::uuid

-- name: raised
-- What is kept of the exception of a letter, if that was asked for.
SELECT d.error_text, d.error_traceback
FROM reservation.dead_letters d
WHERE d.consumer = %(consumer)s AND d.category = %(category)s
  AND d.global_position = %(global_position)s

-- name: correction
-- The data that a letter was given, and who gave it, when and why.
SELECT h.decided_by, h.on_behalf_of, h.decided_at, h.reason, d.data::text
FROM reservation.dead_letters d
JOIN reservation.letter_decisions h ON h.number = d.correction
WHERE d.consumer = %(consumer)s AND d.category = %(category)s
  AND d.global_position = %(global_position)s

-- name: retry_with_data
SELECT reservation.retry_with_data(
  %(consumer)s, %(category)s, %(global_position)s, %(data)s::jsonb, %(reason)s, %(on_behalf_of)s,
  %(request)s)
