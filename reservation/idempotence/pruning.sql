-- name: reservations
-- Looks at the next messages of a reservation category, and removes those streams of theirs that may
-- go. Returns the position to go on after, NULL at the end: where the category ends, where its
-- consumer is, or where a whole portion is too young.
WITH handled AS MATERIALIZED (
  SELECT min(p.position) AS up_to FROM reservation.positions p
  WHERE p.consumer = %(consumer)s AND p.category = %(category)s
), portion AS MATERIALIZED (
  SELECT m.global_position, m.stream_name,
         m.time < clock_timestamp() AT TIME ZONE 'utc' - %(older_than)s::interval AS is_old
  FROM message_store.messages m
  WHERE (message_store.category(m.stream_name), m.global_position)
        > (%(category)s, %(after)s::bigint)
    AND (message_store.category(m.stream_name), m.global_position)
        <= (%(category)s, (SELECT h.up_to FROM handled h))
  ORDER BY message_store.category(m.stream_name), m.global_position
  LIMIT %(limit)s
), to_go AS MATERIALIZED (
  SELECT DISTINCT p.stream_name
  FROM portion p
  WHERE p.is_old
    AND NOT EXISTS (
      SELECT FROM message_store.messages m, handled h
      WHERE m.stream_name = p.stream_name
        AND (m.global_position > h.up_to
             OR m.time >= clock_timestamp() AT TIME ZONE 'utc' - %(older_than)s::interval))
    AND NOT EXISTS (
      SELECT FROM reservation.dead_letters d
      WHERE d.consumer = %(consumer)s AND d.category = %(category)s
        AND d.stream_name = p.stream_name AND d.state IN ('dead', 'parked', 'retry'))
), gone AS (
  DELETE FROM message_store.messages m
  USING to_go t
  WHERE %(apply)s AND m.stream_name = t.stream_name
)
SELECT CASE WHEN (SELECT count(*) FILTER (WHERE p.is_old) > 0 AND count(*) = %(limit)s FROM portion p)
            THEN (SELECT max(p.global_position) FROM portion p) END,
       (SELECT count(*) FROM to_go)

-- name: archived_commands
-- Removes those of some archived commands that may go, and returns how many. What any consumer of the
-- category has yet to read, or to deal with, stays; so does the last message of each stream, because
-- the next one takes its position from it, and the last that is archived, which tells whose archive it is.
WITH portion AS MATERIALIZED (
  SELECT m.global_position, m.stream_name, m.position
  FROM unnest(%(positions)s::bigint[], %(ids)s::uuid[]) AS a(global_position, id)
  JOIN message_store.messages m USING (global_position, id)
  WHERE message_store.category(m.stream_name) = %(category)s
    AND m.global_position < %(last)s
    AND m.global_position <= (SELECT min(p.position) FROM reservation.positions p
                              WHERE p.category = %(category)s)
), to_go AS MATERIALIZED (
  SELECT p.global_position
  FROM portion p
  WHERE EXISTS (
      SELECT FROM message_store.messages m
      WHERE m.stream_name = p.stream_name AND m.position > p.position)
    AND NOT EXISTS (
      SELECT FROM reservation.dead_letters d
      WHERE d.category = %(category)s AND d.global_position = p.global_position
        AND d.state IN ('dead', 'parked', 'retry'))
), gone AS (
  DELETE FROM message_store.messages m
  USING to_go t
  WHERE %(apply)s AND m.global_position = t.global_position
)
SELECT count(*) FROM to_go

-- name: archived_reservations
-- The same of some archived reservations, of streams of which all is archived, old enough, read and no
-- dead letter.
WITH up_to AS MATERIALIZED (
  SELECT least(min(p.position), %(last)s - 1) AS position FROM reservation.positions p
  WHERE p.category = %(category)s
  HAVING count(*) > 0
), portion AS MATERIALIZED (
  SELECT m.global_position, m.stream_name
  FROM unnest(%(positions)s::bigint[], %(ids)s::uuid[]) AS a(global_position, id)
  JOIN message_store.messages m USING (global_position, id)
  JOIN up_to u ON m.global_position <= u.position
  WHERE message_store.category(m.stream_name) = %(category)s
), to_go AS MATERIALIZED (
  SELECT p.global_position
  FROM portion p
  WHERE NOT EXISTS (
      SELECT FROM message_store.messages m, up_to u
      WHERE m.stream_name = p.stream_name
        AND (m.global_position > u.position
             OR m.time >= clock_timestamp() AT TIME ZONE 'utc' - %(older_than)s::interval))
    AND NOT EXISTS (
      SELECT FROM reservation.dead_letters d
      WHERE d.category = %(category)s AND d.stream_name = p.stream_name
        AND d.state IN ('dead', 'parked', 'retry'))
), gone AS (
  DELETE FROM message_store.messages m
  USING to_go t
  WHERE %(apply)s AND m.global_position = t.global_position
)
SELECT count(*) FROM to_go
