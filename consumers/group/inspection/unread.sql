-- name: unread
-- Command categories that no consumer was ever run on, with their messages up to a limit. The index is
-- gone through from one category to the next. A consumer of Eventide keeps its position in a category
-- of its own.
WITH RECURSIVE found(category, number) AS (
  (
    SELECT message_store.category(stream_name)::text, 1 FROM message_store.messages
    ORDER BY message_store.category(stream_name) LIMIT 1
  )
  UNION ALL
  SELECT (
    SELECT message_store.category(m.stream_name)::text FROM message_store.messages m
    WHERE message_store.category(m.stream_name) > f.category::varchar
    ORDER BY message_store.category(m.stream_name) LIMIT 1
  ), f.number + 1
  FROM found f
  WHERE f.category IS NOT NULL AND f.number < %(most)s
)
SELECT f.category, (
  SELECT count(*) FROM (
    SELECT FROM message_store.messages m
    WHERE message_store.category(m.stream_name) = f.category::varchar
    LIMIT %(counted)s
  ) AS message
)
FROM found f
WHERE right(f.category, 8) = ':command' AND f.category <> ALL (%(declared)s::text[])
  AND NOT EXISTS (SELECT FROM reservation.groups g WHERE g.category = f.category)
  AND f.category || '+position' NOT IN (SELECT p.category FROM found p WHERE p.category IS NOT NULL)
ORDER BY f.category
LIMIT %(shown)s
