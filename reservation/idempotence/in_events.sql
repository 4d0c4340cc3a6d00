-- name: newer_events
-- The events of each stream that were stored after a global position, from its end backwards, so that
-- a long stream is not read: what brought about an event was stored before it.
WITH RECURSIVE asked AS (
  SELECT a.stream_name, a.after
  FROM unnest(%s::text[], %s::bigint[]) AS a(stream_name, after)
), newer AS (
  SELECT a.stream_name, a.after, e.position, e.global_position, e.metadata
  FROM asked a
  CROSS JOIN LATERAL (
    SELECT m.position, m.global_position, m.metadata
    FROM message_store.messages m
    WHERE m.stream_name = a.stream_name
    ORDER BY m.position DESC
    LIMIT 1
  ) AS e
  WHERE e.global_position > a.after
  UNION ALL
  SELECT n.stream_name, n.after, e.position, e.global_position, e.metadata
  FROM newer n
  CROSS JOIN LATERAL (
    SELECT m.position, m.global_position, m.metadata
    FROM message_store.messages m
    WHERE m.stream_name = n.stream_name AND m.position < n.position
    ORDER BY m.position DESC
    LIMIT 1
  ) AS e
  WHERE e.global_position > n.after
)
SELECT n.stream_name,
       n.metadata->'localProperties'->>'messageId' AS message_id,
       message_store.category(n.metadata->>'causationMessageStreamName') AS source,
       CASE WHEN n.metadata->'localProperties'->>'sequence' ~ '^[0-9]{1,18}$'
            THEN (n.metadata->'localProperties'->>'sequence')::bigint END AS sequence
FROM newer n
WHERE n.metadata->'localProperties' ?| ARRAY['messageId', 'sequence']
