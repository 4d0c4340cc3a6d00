-- name: watch
-- As for letters: while it is held, nobody gives one other data.
SELECT pg_advisory_xact_lock_shared(hashtextextended('reservation.dead_letters', 0))

-- name: until
-- The highest position at which a message may be handled with other data. Only a letter can be given any, and
-- new letters lie behind the consumer.
-- Not the maximum, for which the planner may read all letters of a category that it takes for few.
SELECT (
  SELECT d.global_position FROM reservation.dead_letters d
  WHERE d.consumer = %(consumer)s AND d.category = %(category)s
  ORDER BY d.global_position DESC LIMIT 1)

-- name: of_messages
-- The data that the letters of some messages were given. Each is a step into the index, because of the limit:
-- in a join the planner may look through all letters of a category.
SELECT i.global_position, d.data::varchar
FROM unnest(%(global_positions)s::bigint[], %(message_ids)s::uuid[]) AS i(global_position, message_id)
CROSS JOIN LATERAL (
  SELECT d.message_id, d.data FROM reservation.dead_letters d
  WHERE d.consumer = %(consumer)s AND d.category = %(category)s
    AND d.global_position = i.global_position AND d.data IS NOT NULL
  LIMIT 1
) AS d
WHERE d.message_id = i.message_id

-- name: of_reissues
-- The data of letters whose messages say what some messages of their type say. A message that lacks its key, or
-- whose key a function makes, says nothing of which command another one is. The data counts once its letter is
-- handled, or is handled before in the same batch: until then it may be replaced, or discarded.
WITH corrected AS MATERIALIZED (
  SELECT d.global_position, d.state, d.correction, m.type, d.data,
         reservation.content(m.data, v.fields) AS content
  FROM reservation.dead_letters d
  JOIN LATERAL (
    SELECT m.type, m.data FROM message_store.messages m
    WHERE m.global_position = d.global_position AND m.id = d.message_id
    LIMIT 1
  ) AS m ON true
  JOIN LATERAL (
    SELECT ARRAY(SELECT jsonb_array_elements_text(%(ignoring)s->m.type)) AS fields
  ) AS v ON true
  WHERE d.consumer = %(consumer)s AND d.category = %(category)s AND d.data IS NOT NULL
    AND d.key_fields IS NOT NULL
    AND NOT EXISTS (SELECT FROM unnest(d.key_fields) AS k(field) WHERE m.data->>k.field IS NULL)
)
SELECT DISTINCT ON (c.global_position) c.global_position, corrected.data::varchar
FROM unnest(%(global_positions)s::bigint[]) AS i(global_position)
JOIN message_store.messages c ON c.global_position = i.global_position
JOIN corrected ON corrected.type = c.type
  AND (corrected.state = 'handled'
       OR corrected.global_position < c.global_position
          AND corrected.global_position = ANY(%(global_positions)s))
  AND corrected.content = reservation.content(
        c.data, ARRAY(SELECT jsonb_array_elements_text(%(ignoring)s->c.type)))
ORDER BY c.global_position, corrected.correction DESC
