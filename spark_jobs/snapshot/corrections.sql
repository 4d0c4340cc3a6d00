-- name: corrections
-- The messages of a category that were corrected, with the digests of their own contents and of those of
-- their last corrections. A correction of a message of another log does not count.
WITH last AS (
  SELECT DISTINCT ON (k.global_position) k.global_position, k.correction, k.correction_id
  FROM reservation.corrections k
  WHERE k.consumer = {consumer} AND k.category = {category}
    AND NOT EXISTS (
      SELECT FROM message_store.messages m
      WHERE m.global_position = k.global_position AND m.id <> k.message_id)
  ORDER BY k.global_position, k.correction DESC
), contents AS (
  SELECT last.global_position, last.correction, c.data->>'type' AS type, v.is_former, v.data
  FROM last
  JOIN message_store.messages c ON c.global_position = last.correction AND c.id = last.correction_id
  CROSS JOIN LATERAL (
    VALUES (true, c.data->'former'), (false, c.data->'corrected')
  ) AS v(is_former, data)
), digests AS (
  SELECT m.global_position, m.correction, m.type, m.is_former, {content} AS digest
  FROM (
    SELECT m.*, m.kept::text AS kept_text
    FROM (SELECT m.*, {kept} AS kept FROM contents AS m) AS m
  ) AS m
)
SELECT d.global_position, d.type, max(d.digest) FILTER (WHERE d.is_former),
       max(d.digest) FILTER (WHERE NOT d.is_former),
       d.correction
FROM digests d
GROUP BY d.global_position, d.type, d.correction
ORDER BY d.global_position
