-- name: older
-- Letters behind another one, the last of the log first.
(SELECT d.* FROM reservation.dead_letters d
WHERE {conditions}
  AND (d.global_position, d.consumer, d.category)
      < (%(key_position)s::bigint, %(key_consumer)s::text, %(key_category)s::text)
ORDER BY d.global_position DESC, d.consumer DESC, d.category DESC
LIMIT %(limit)s)

-- name: newer
-- Letters before another one, those next to it first.
(SELECT d.* FROM reservation.dead_letters d
WHERE {conditions}
  AND (d.global_position, d.consumer, d.category)
      > (%(key_position)s::bigint, %(key_consumer)s::text, %(key_category)s::text)
ORDER BY d.global_position, d.consumer, d.category
LIMIT %(limit)s)

-- name: last
(SELECT d.* FROM reservation.dead_letters d
WHERE {conditions}
ORDER BY d.global_position DESC, d.consumer DESC, d.category DESC
LIMIT %(limit)s)

-- name: keys
(SELECT d.*
FROM unnest(%(consumers)s::text[], %(categories)s::text[], %(global_positions)s::bigint[])
     AS k (consumer, category, global_position)
JOIN reservation.dead_letters d USING (consumer, category, global_position))

-- name: by_consumer
d.consumer = %(consumer)s

-- name: by_category
d.category = %(category)s

-- name: by_type
d.type = %(type)s

-- name: by_reason
d.reason = %(reason)s

-- name: by_entity
d.entity = %(entity)s

-- name: by_stream
d.stream_name = %(stream)s

-- name: by_message_id
d.message_id = %(message_id)s::uuid

-- name: by_digest
d.digest = %(digest)s

-- name: by_text
strpos(lower(concat_ws(' ', d.error, d.error_type, d.error_place)), lower(%(text)s)) > 0

-- name: by_states
d.state = ANY(%(states)s)

-- name: by_is_retriable
(d.state = 'dead' OR d.state = 'waiting' AND (d.attempts > 0 OR d.next_attempt_at > statement_timestamp()))
  AND d.reason <> 'conflict'

-- name: by_needs_person
(d.state = 'dead' OR d.state = 'parked' AND EXISTS (
  SELECT FROM reservation.dead_letters h
  WHERE h.consumer = d.consumer AND h.category = d.category AND h.entity = d.entity
    AND h.global_position < d.global_position AND h.state = 'dead'))

-- name: by_older_than
d.created_at < now() - %(older_than)s::interval

-- name: by_any
-- Nothing narrows them.
true

-- name: counts
SELECT d.state, count(*) FROM reservation.dead_letters d GROUP BY d.state

-- name: consumers
-- Each is found by a step in the index.
WITH RECURSIVE names (consumer, category) AS (
  (SELECT d.consumer, d.category FROM reservation.dead_letters d ORDER BY 1, 2 LIMIT 1)
  UNION ALL
  SELECT next.consumer, next.category
  FROM names n
  CROSS JOIN LATERAL (
    SELECT d.consumer, d.category FROM reservation.dead_letters d
    WHERE (d.consumer, d.category) > (n.consumer, n.category)
    ORDER BY 1, 2
    LIMIT 1
  ) AS next
)
SELECT consumer, category FROM names

-- name: extent
SELECT count(*), coalesce(max(d.global_position), 0) FROM reservation.dead_letters d WHERE {conditions}
