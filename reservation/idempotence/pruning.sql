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
