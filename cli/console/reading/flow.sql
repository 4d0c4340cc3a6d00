-- name: traffic
-- Of each category: how many of its newest messages were written within a window, over how many
-- seconds these are counted, and when the last of all was written.
SELECT c.category, newest.recent, newest.seconds, newest.last_at
FROM unnest(%(categories)s::text[]) AS c (category)
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE m.age <= %(window)s) AS recent,
         CASE WHEN count(*) = %(most)s AND max(m.age) <= %(window)s THEN greatest(max(m.age), 1)
              ELSE %(window)s END AS seconds,
         max(m.time) AS last_at
  FROM (
    SELECT reservation.readable_time(time) AS time,
           extract(epoch FROM (now() AT TIME ZONE 'utc') - reservation.readable_time(time))::float8 AS age
    FROM message_store.messages
    WHERE (message_store.category(stream_name), global_position)
          BETWEEN (c.category, 0) AND (c.category, 9223372036854775807)
    ORDER BY message_store.category(stream_name) DESC, global_position DESC
    LIMIT %(most)s
  ) AS m
) AS newest
