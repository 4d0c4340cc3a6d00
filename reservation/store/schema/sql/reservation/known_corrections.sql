-- A store that is attached again still has the messages. Each category is found by a step in the index.
WITH RECURSIVE categories(category) AS (
  (SELECT message_store.category(m.stream_name) FROM message_store.messages m
   ORDER BY message_store.category(m.stream_name) LIMIT 1)
  UNION ALL
  SELECT (SELECT message_store.category(m.stream_name) FROM message_store.messages m
          WHERE message_store.category(m.stream_name) > c.category
          ORDER BY message_store.category(m.stream_name) LIMIT 1)
  FROM categories c WHERE c.category IS NOT NULL
), corrections AS MATERIALIZED (
  SELECT m.global_position AS correction, m.id, m.data
  FROM categories c
  JOIN message_store.messages m ON message_store.category(m.stream_name) = c.category
  WHERE c.category LIKE '%:correction' AND m.type = 'Corrected'
    AND m.stream_name = (m.data->>'consumer') || ':correction-' || (m.data->>'globalPosition')
    AND m.data->>'globalPosition' ~ '^[0-9]{1,18}$'
    AND m.data->>'messageId' ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
    AND m.data->>'category' IS NOT NULL
    AND jsonb_typeof(m.data->'corrected') = 'object'
)
INSERT INTO reservation.corrections
SELECT k.correction, k.id, k.data->>'consumer', k.data->>'category',
       (k.data->>'globalPosition')::bigint, (k.data->>'messageId')::uuid
FROM corrections k
ON CONFLICT DO NOTHING;
