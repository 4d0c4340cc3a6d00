-- name: corrections
-- The messages of a category whose letters were given other data, with the digests of what was sent and of what
-- was given, and that data. A letter of a message of another log does not count.
WITH contents AS (
  SELECT m.global_position, m.type, v.is_sent, v.data
  FROM reservation.dead_letters d
  JOIN message_store.messages m ON m.global_position = d.global_position AND m.id = d.message_id
  CROSS JOIN LATERAL (VALUES (true, m.data), (false, d.data)) AS v(is_sent, data)
  WHERE d.consumer = {consumer} AND d.category = {category} AND d.data IS NOT NULL
), digests AS (
  SELECT m.global_position, m.type, m.is_sent, m.data, {content} AS digest
  FROM (
    SELECT m.*, m.kept::text AS kept_text
    FROM (SELECT m.*, {kept} AS kept FROM contents AS m) AS m
  ) AS m
)
SELECT d.global_position, d.type, max(d.digest) FILTER (WHERE d.is_sent),
       max(d.digest) FILTER (WHERE NOT d.is_sent), max(d.data::text) FILTER (WHERE NOT d.is_sent)
FROM digests d
GROUP BY d.global_position, d.type
ORDER BY d.global_position

-- name: letters
-- The data that letters of a part of a category were given, and who gave it, when and why.
SELECT d.category, d.global_position, d.data::text, h.decided_by, h.decided_at, h.reason
FROM reservation.dead_letters d
JOIN message_store.messages m ON m.global_position = d.global_position AND m.id = d.message_id
JOIN reservation.letter_decisions h ON h.number = d.correction
WHERE d.consumer = %(consumer)s AND d.category = %(category)s AND d.data IS NOT NULL
  AND d.global_position BETWEEN %(first)s AND %(last)s
ORDER BY d.global_position
