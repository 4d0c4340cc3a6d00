-- name: settings
-- As the functions that read a category have it: the planner is left no index but the right one.
SELECT set_config(name, 'off', true)
FROM unnest(ARRAY['enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'jit']) AS name

-- name: counted
-- The types of the first messages of a category, with how many there are of each.
SELECT type, count(*)
FROM (
  SELECT m.type::text AS type
  FROM message_store.messages m
  WHERE (message_store.category(m.stream_name), m.global_position)
        BETWEEN (%(category)s, 0) AND (%(category)s, 9223372036854775807)
  ORDER BY message_store.category(m.stream_name), m.global_position
  LIMIT %(limit)s
) AS read
GROUP BY type

-- name: oldest
SELECT m.global_position
FROM message_store.messages m
WHERE (message_store.category(m.stream_name), m.global_position)
      BETWEEN (%(category)s, 0) AND (%(category)s, 9223372036854775807)
ORDER BY message_store.category(m.stream_name), m.global_position
LIMIT %(limit)s

-- name: newest
SELECT m.global_position
FROM message_store.messages m
WHERE (message_store.category(m.stream_name), m.global_position)
      BETWEEN (%(category)s, 0) AND (%(category)s, 9223372036854775807)
ORDER BY message_store.category(m.stream_name) DESC, m.global_position DESC
LIMIT %(limit)s

-- name: longest
-- Of the newest messages of a category, the stream of the one that has most before it.
SELECT newest.stream_name
FROM (
  SELECT m.stream_name::text AS stream_name, m.position
  FROM message_store.messages m
  WHERE (message_store.category(m.stream_name), m.global_position)
        BETWEEN (%(category)s, 0) AND (%(category)s, 9223372036854775807)
  ORDER BY message_store.category(m.stream_name) DESC, m.global_position DESC
  LIMIT %(limit)s
) AS newest
ORDER BY newest.position DESC
LIMIT 1

-- name: spread
-- At each of some places of the log, the next messages of a category.
SELECT place, ARRAY(
  SELECT m.global_position
  FROM message_store.messages m
  WHERE (message_store.category(m.stream_name), m.global_position)
        BETWEEN (%(category)s, place) AND (%(category)s, %(last)s::bigint)
  ORDER BY message_store.category(m.stream_name), m.global_position
  LIMIT %(at_each)s)
FROM unnest(%(places)s::bigint[]) AS place
ORDER BY place

-- name: at_positions
SELECT m.id::varchar, m.stream_name::varchar, reservation.readable_type(m.type), m.position,
       m.global_position, reservation.readable_text(m.data), reservation.readable_text(m.metadata),
       reservation.readable_time(m.time)
FROM message_store.messages m
WHERE m.global_position = ANY (%(positions)s::bigint[])

-- name: snapshots
-- Of the first snapshots of the store, how many are of a category, and how many of these are of
-- another revision; and whether there are more snapshots than were looked at.
SELECT count(*) FILTER (WHERE message_store.category(s.stream_name::varchar) = %(category)s),
       count(*) FILTER (WHERE message_store.category(s.stream_name::varchar) = %(category)s
                          AND s.revision IS DISTINCT FROM %(revision)s),
       count(*) > %(limit)s
FROM (
  SELECT stream_name, revision FROM reservation.snapshots LIMIT %(limit)s + 1
) AS s
