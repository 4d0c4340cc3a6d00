-- name: reserve
SELECT ordinal, outcome FROM reservation.reserve(%s, %s, %s::jsonb, %s::text[], %s::jsonb[])

-- name: compare_initiations
SELECT ordinal, outcome FROM reservation.compare_initiations(%s, %s, %s, %s::jsonb[])
ORDER BY ordinal

-- name: read_commands
SELECT id, stream_name, type, position, global_position, data, metadata, time, key_stream
FROM reservation.read_commands(%s, %s, %s, %s, %s::integer[], %s, %s::bigint[], %s, %s)

-- name: first_reserved
-- Commands, and what was reserved first under their keys. What was reserved under the former name is
-- that. Each is found by an index whatever the planner knows, because of the limits.
SELECT i.n, ARRAY(SELECT k::text FROM reservation.corrected_contents(f.id, f.global_position, f.metadata) AS k),
       c.id::varchar, c.stream_name::varchar, reservation.readable_type(c.type),
       c.position, c.global_position,
       reservation.readable_text(c.data), reservation.readable_text(c.metadata),
       reservation.readable_time(c.time),
       f.id::varchar, f.stream_name::varchar, reservation.readable_type(f.type),
       f.position, f.global_position,
       reservation.readable_text(f.data), reservation.readable_text(f.metadata),
       reservation.readable_time(f.time)
FROM unnest(%s::bigint[], %s::text[], %s::text[])
     WITH ORDINALITY AS i(command, stream_name, former_name, n)
CROSS JOIN LATERAL (
  SELECT m.* FROM message_store.messages m
  WHERE m.global_position = i.command
  LIMIT 1
) AS c
CROSS JOIN LATERAL (
  SELECT m.* FROM message_store.messages m
  WHERE m.stream_name = coalesce((
          SELECT former.stream_name FROM message_store.messages former
          WHERE former.stream_name = i.former_name AND former.position = 0
        ), i.stream_name)
    AND m.position = 0
  LIMIT 1
) AS f
ORDER BY i.n

-- name: first_initiated
-- Commands, and the commands that started the streams of their entities. Pseudo events start none, but
-- for the rejection of a command that initiates.
SELECT i.n, ARRAY(SELECT k::text FROM reservation.corrected_contents(f.id, f.global_position, NULL) AS k),
       c.id::varchar, c.stream_name::varchar, reservation.readable_type(c.type),
       c.position, c.global_position,
       reservation.readable_text(c.data), reservation.readable_text(c.metadata),
       reservation.readable_time(c.time),
       f.id::varchar, f.stream_name::varchar, reservation.readable_type(f.type),
       f.position, f.global_position,
       reservation.readable_text(f.data), reservation.readable_text(f.metadata),
       reservation.readable_time(f.time)
FROM unnest(%s::bigint[], %s::text[], %s::text[])
     WITH ORDINALITY AS i(command, stream_name, former_name, n)
CROSS JOIN LATERAL (
  SELECT m.* FROM message_store.messages m
  WHERE m.global_position = i.command
  LIMIT 1
) AS c
CROSS JOIN LATERAL (
  SELECT m.metadata FROM message_store.messages m
  WHERE m.stream_name = i.stream_name AND reservation.starts(m.type, m.data)
  ORDER BY m.position
  LIMIT 1
) AS initial
CROSS JOIN LATERAL (
  SELECT m.* FROM message_store.messages m
  WHERE m.global_position = reservation.causation(initial.metadata)
  LIMIT 1
) AS f
ORDER BY i.n
