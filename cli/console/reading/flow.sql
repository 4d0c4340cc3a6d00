-- name: traffic
-- Of each category: how many of its newest messages were written within a window, how many there are
-- at most so many of, when the first within the window was, the last of all, and the categories of the
-- messages that brought the newest ones about.
SELECT c.category,
       newest.recent, newest.seconds, newest.last_at,
       coalesce(causes.sources, '{}')
FROM unnest(%(categories)s::text[]) AS c (category)
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE m.age <= %(window)s) AS recent,
         CASE WHEN count(*) = %(most)s AND max(m.age) <= %(window)s THEN greatest(max(m.age), 1)
              ELSE %(window)s END AS seconds,
         max(m.time) AS last_at
  FROM (
    SELECT time, extract(epoch FROM (now() AT TIME ZONE 'utc') - time)::float8 AS age
    FROM message_store.messages
    WHERE (message_store.category(stream_name), global_position)
          BETWEEN (c.category, 0) AND (c.category, 9223372036854775807)
    ORDER BY message_store.category(stream_name) DESC, global_position DESC
    LIMIT %(most)s
  ) AS m
) AS newest
CROSS JOIN LATERAL (
  SELECT array_agg(DISTINCT message_store.category(m.cause)) FILTER (WHERE m.cause IS NOT NULL)
           AS sources
  FROM (
    SELECT metadata->>'causationMessageStreamName' AS cause
    FROM message_store.messages
    WHERE (message_store.category(stream_name), global_position)
          BETWEEN (c.category, 0) AND (c.category, 9223372036854775807)
    ORDER BY message_store.category(stream_name) DESC, global_position DESC
    LIMIT %(looked_at)s
  ) AS m
) AS causes
