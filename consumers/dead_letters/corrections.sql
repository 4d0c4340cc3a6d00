-- name: watch
-- As for letters: while it is held, nobody corrects one.
SELECT pg_advisory_xact_lock_shared(hashtextextended('reservation.dead_letters', 0))

-- name: until
-- The highest position at which a message may have a correction. Only a message that has a letter can
-- get one, and new letters lie behind the consumer.
-- Not the maximum, for which the planner may read all letters of a category that it takes for few.
SELECT greatest(
  (SELECT d.global_position FROM reservation.dead_letters d
   WHERE d.consumer = %(consumer)s AND d.category = %(category)s
   ORDER BY d.global_position DESC LIMIT 1),
  (SELECT k.global_position FROM reservation.corrections k
   WHERE k.consumer = %(consumer)s AND k.category = %(category)s
   ORDER BY k.global_position DESC LIMIT 1))

-- name: of_messages
-- The last correction of each. Each is a step into the index, because of the limits: in a join the
-- planner may look through all corrections of a category.
SELECT i.global_position, (k.data->'corrected')::varchar
FROM unnest(%(global_positions)s::bigint[], %(message_ids)s::uuid[]) AS i(global_position, message_id)
CROSS JOIN LATERAL (
  SELECT m.data
  FROM (
    SELECT * FROM reservation.corrections c
    WHERE c.consumer = %(consumer)s AND c.category = %(category)s
      AND c.global_position = i.global_position AND c.message_id = i.message_id
    OFFSET 0
  ) AS c
  CROSS JOIN LATERAL (
    SELECT m.data FROM message_store.messages m
    WHERE m.global_position = c.correction AND m.id = c.correction_id
    LIMIT 1
  ) AS m
  ORDER BY c.correction DESC
  LIMIT 1
) AS k

-- name: of_reissues
-- The last correction of each corrected message, with what the message itself says, compared with some
-- messages of its type. A message that lacked its key says nothing of which command another one is.
WITH last AS MATERIALIZED (
  SELECT DISTINCT ON (k.global_position, k.message_id) k.correction, k.correction_id
  FROM reservation.corrections k
  WHERE k.consumer = %(consumer)s AND k.category = %(category)s
  ORDER BY k.global_position, k.message_id, k.correction DESC
), corrected AS MATERIALIZED (
  SELECT last.correction, m.data->>'type' AS type, m.data->'corrected' AS data,
         reservation.content(m.data->'former', v.fields) AS content
  FROM last
  JOIN message_store.messages m ON m.global_position = last.correction AND m.id = last.correction_id
    AND coalesce(m.data->'notCompared', '[]') = '[]'
  JOIN LATERAL (
    SELECT ARRAY(SELECT jsonb_array_elements_text(%(volatile)s->(m.data->>'type'))) AS fields
  ) AS v ON true
)
SELECT DISTINCT ON (c.global_position) c.global_position, corrected.data::varchar
FROM unnest(%(global_positions)s::bigint[]) AS i(global_position)
JOIN message_store.messages c ON c.global_position = i.global_position
JOIN corrected ON corrected.type = c.type
  AND corrected.content = reservation.content(
        c.data, ARRAY(SELECT jsonb_array_elements_text(%(volatile)s->c.type)))
ORDER BY c.global_position, corrected.correction DESC
