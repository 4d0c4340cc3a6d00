-- name: watch
-- Held while letters are written or handled, so that nobody changes their states meanwhile. Who
-- changes them holds it for himself alone. What is read after this is as it then stays.
SELECT pg_advisory_xact_lock_shared(hashtextextended('reservation.dead_letters', 0))

-- name: record
-- A message that is read again, because the position was set back, has a letter already. An open one
-- stays, and so does a conflict that somebody has looked at. A letter for another message at that
-- place is of a log that was replaced.
INSERT INTO reservation.dead_letters AS known (
  consumer, category, global_position, message_id, stream_name, type, entity, state, reason, error,
  digest, attempts, process, next_attempt_at, error_type, error_place, error_text, error_traceback,
  key_fields, rate
)
SELECT %(consumer)s, %(category)s, l.global_position, l.message_id, l.stream_name, l.type, l.entity,
       l.state, l.reason, l.error, l.digest, l.attempts, %(process)s,
       coalesce(t.at, clock_timestamp() + make_interval(secs => l.wait)),
       l.error_type, l.error_place, l.error_text, l.error_traceback,
       CASE jsonb_typeof(%(key_fields)s->l.type) WHEN 'array' THEN
         ARRAY(SELECT jsonb_array_elements_text(%(key_fields)s->l.type)) END,
       l.rate
FROM unnest(
  %(global_positions)s::bigint[], %(message_ids)s::uuid[], %(stream_names)s::text[],
  %(types)s::text[], %(entities)s::text[], %(states)s::text[], %(reasons)s::text[],
  %(errors)s::text[], %(digests)s::text[], %(attempts)s::integer[], %(waits)s::float8[],
  %(error_types)s::text[], %(error_places)s::text[], %(error_texts)s::text[],
  %(error_tracebacks)s::text[], %(rates)s::text[]
) AS l (global_position, message_id, stream_name, type, entity, state, reason, error, digest,
        attempts, wait, error_type, error_place, error_text, error_traceback, rate)
LEFT JOIN reservation.rate_times(
  %(consumer)s, %(category)s, %(global_positions)s, %(rates)s, %(waits)s, %(intervals)s,
  %(have_waited)s::boolean[]
) AS t ON t.global_position = l.global_position
ON CONFLICT (consumer, category, global_position) DO UPDATE
SET message_id = excluded.message_id, stream_name = excluded.stream_name, type = excluded.type,
    entity = excluded.entity, state = excluded.state, reason = excluded.reason,
    error = excluded.error, digest = excluded.digest, attempts = excluded.attempts,
    process = excluded.process, changed_at = clock_timestamp(),
    next_attempt_at = excluded.next_attempt_at, error_type = excluded.error_type,
    error_place = excluded.error_place, error_text = excluded.error_text,
    error_traceback = excluded.error_traceback, key_fields = excluded.key_fields,
    rate = excluded.rate
WHERE known.state IN ('handled', 'discarded') AND known.reason <> 'conflict'
   OR known.message_id <> excluded.message_id

-- name: has_open
SELECT reservation.has_open_letter(%(consumer)s, %(category)s)

-- name: heads
-- Of each of some entities the place of its first open letter.
SELECT head.entity, head.global_position
FROM (
  SELECT e.entity, reservation.first_open_letter(%(consumer)s, %(category)s, e.entity) AS global_position
  FROM unnest(%(entities)s::text[]) AS e (entity)
  OFFSET 0
) AS head
WHERE head.global_position IS NOT NULL

-- name: blocked
SELECT DISTINCT entity
FROM reservation.dead_letters
WHERE consumer = %(consumer)s AND category = %(category)s
  AND state IN ('waiting', 'parked', 'dead') AND entity IS NOT NULL
  AND reservation.partition_of(stream_name, %(size)s) = ANY(%(partitions)s)

-- name: due
-- The first open letter of an entity is due if it is parked, or waits and its time has come. With it come those
-- parked behind it, up to one in a partition that is not held; behind one that waited for a rate so few that one of
-- them waits next. A letter comes with the data that it was given. They end with the message that brings the bytes of
-- data and metadata, as they are stored, to a megabyte. In each row, of which there is at least one, are the seconds
-- until the next letter that waits. Those whose async calls go on in the process that asks are not due; in one that is
-- paused, only those whose calls have ended are. Of those that wait for a breaker that is not closed only one is due,
-- the one that has waited longest, once it may be the probe.
WITH open AS MATERIALIZED (
  SELECT unnest(b.types) AS type, b.wait
  FROM reservation.breaker_states(%(consumer)s, %(category)s) AS b
  WHERE b.wait IS NOT NULL
), lines AS (
  SELECT NULL AS probed, %(limit)s::bigint AS most
  UNION ALL
  SELECT o.type, 1 FROM open o WHERE o.wait <= 0
), heads AS (
  SELECT head.*
  FROM lines
  CROSS JOIN LATERAL (
    SELECT w.global_position, w.entity, w.rate IS NOT NULL AS is_limited
    FROM reservation.dead_letters w
    WHERE w.consumer = %(consumer)s AND w.category = %(category)s AND w.state = 'waiting'
      AND w.next_attempt_at <= statement_timestamp()
      AND CASE WHEN lines.probed IS NULL
               THEN w.reason <> 'breaker_open' OR w.type <> ALL (ARRAY(SELECT o.type FROM open o))
               ELSE w.reason = 'breaker_open' AND w.type = lines.probed END
      AND w.global_position <> ALL (%(running)s::bigint[])
      AND (%(only)s::bigint[] IS NULL OR w.global_position = ANY (%(only)s))
      AND (%(size)s::integer = 1 AND %(partitions)s::integer[] = '{0}'
           OR reservation.partition_of(w.stream_name, %(size)s) = ANY(%(partitions)s))
      AND (w.entity IS NULL OR w.global_position
             <= reservation.first_open_letter(%(consumer)s, %(category)s, w.entity))
    ORDER BY w.next_attempt_at
    LIMIT lines.most
  ) AS head
  UNION ALL
  SELECT global_position, entity, false
  FROM reservation.parked_heads(%(consumer)s, %(category)s, %(partitions)s, %(size)s, %(parked)s)
  WHERE global_position <> ALL (%(running)s::bigint[])
), queued AS (
  SELECT h.global_position FROM heads h WHERE h.entity IS NULL
  UNION ALL
  SELECT queue.global_position
  FROM heads h
  CROSS JOIN LATERAL (
    SELECT first.global_position, bool_or(first.global_position > h.global_position AND (
             first.state <> 'parked'
             OR reservation.partition_of(first.stream_name, %(size)s) <> ALL (%(partitions)s)))
             OVER (ORDER BY first.global_position) AS is_behind
    FROM reservation.open_letters(
      %(consumer)s, %(category)s, h.entity, CASE WHEN h.is_limited THEN %(limited)s ELSE %(limit)s END
    ) AS first
  ) AS queue
  WHERE NOT queue.is_behind
), due AS (
  SELECT d.*, m.id AS found, m.position, m.data AS message_data, m.metadata, m.time,
         count(*) OVER () AS queue_length,
         sum(coalesce(pg_column_size(d.data), 0) + coalesce(pg_column_size(m.data), 0)
             + coalesce(pg_column_size(m.metadata), 0))
           OVER (ORDER BY d.global_position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
  FROM (
    SELECT global_position FROM queued
    WHERE %(only)s::bigint[] IS NULL OR global_position = ANY (%(only)s)
    ORDER BY global_position
    LIMIT %(limit)s
  ) AS l
  CROSS JOIN LATERAL (
    SELECT * FROM reservation.dead_letters
    WHERE consumer = %(consumer)s AND category = %(category)s
      AND global_position = l.global_position
    LIMIT 1
  ) AS d
  LEFT JOIN LATERAL (
    SELECT * FROM message_store.messages
    WHERE global_position = d.global_position AND id = d.message_id
    LIMIT 1
  ) AS m ON true
)
SELECT next.seconds, due.queue_length, due.entity, due.attempts,
       reservation.partition_of(due.stream_name, %(size)s), due.found IS NULL, due.rate IS NOT NULL,
       due.correction, due.data::varchar, due.message_id::varchar, due.stream_name::varchar,
       reservation.readable_type(due.type), coalesce(due.position, 0), due.global_position,
       reservation.readable_text(due.message_data), reservation.readable_text(due.metadata),
       reservation.readable_time(due.time)
FROM (
  SELECT least(extract(epoch FROM (
    SELECT next_attempt_at
    FROM reservation.dead_letters
    WHERE consumer = %(consumer)s AND category = %(category)s AND state = 'waiting'
      AND next_attempt_at > statement_timestamp()
      AND reservation.partition_of(stream_name, %(size)s) = ANY(%(partitions)s)
    ORDER BY next_attempt_at
    LIMIT 1
  ) - clock_timestamp())::float8, (SELECT min(o.wait) FROM open o WHERE o.wait > 0)) AS seconds
) AS next
LEFT JOIN due ON coalesce(due.before, 0) < 1000000
ORDER BY due.global_position

-- name: partitions
SELECT o.global_position, reservation.partition_of(o.stream_name, %(size)s)
FROM unnest(%(global_positions)s::bigint[], %(stream_names)s::text[]) AS o (global_position, stream_name)

-- name: waiting
SELECT count(*)
FROM reservation.dead_letters
WHERE consumer = %(consumer)s AND category = %(category)s AND state = 'waiting' AND reason <> 'running'
  AND reservation.partition_of(stream_name, %(size)s) = ANY(%(partitions)s)

-- name: count_attempt
UPDATE reservation.dead_letters d
SET attempts = greatest(attempts + %(by)s, 0), changed_at = clock_timestamp()
WHERE consumer = %(consumer)s AND category = %(category)s
  AND global_position = %(global_position)s AND d.state IN ('waiting', 'parked')
RETURNING attempts

-- name: mark_handled
-- Only as what they were handled as: a letter that has been corrected meanwhile stays. Each is found
-- by its key, and again by where it is stored: nobody changes it meanwhile, because the lock of the
-- letters is held.
WITH found AS MATERIALIZED (
  SELECT d.place, l.*
  FROM unnest(%(global_positions)s::bigint[], %(corrections)s::bigint[])
       AS l (global_position, correction)
  CROSS JOIN LATERAL (
    SELECT d.ctid AS place, d.state, d.correction FROM reservation.dead_letters d
    WHERE d.consumer = %(consumer)s AND d.category = %(category)s
      AND d.global_position = l.global_position
    LIMIT 1
  ) AS d
  WHERE d.state IN ('waiting', 'parked') AND d.correction IS NOT DISTINCT FROM l.correction
)
UPDATE reservation.dead_letters d
SET state = 'handled', next_attempt_at = NULL, process = %(process)s, changed_at = clock_timestamp()
FROM found
WHERE d.ctid = ANY (ARRAY(SELECT place FROM found)) AND d.global_position = found.global_position

-- name: fail_again
-- They are found as those that were handled, which some of them were taken for until they were written.
WITH found AS MATERIALIZED (
  SELECT d.place, l.*, coalesce(t.at, clock_timestamp() + make_interval(secs => l.wait)) AS at
  FROM unnest(
    %(global_positions)s::bigint[], %(entities)s::text[], %(reasons)s::text[], %(errors)s::text[],
    %(digests)s::text[], %(attempts)s::integer[], %(waits)s::float8[], %(corrections)s::bigint[],
    %(error_types)s::text[], %(error_places)s::text[], %(error_texts)s::text[],
    %(error_tracebacks)s::text[], %(rates)s::text[]
  ) AS l (global_position, entity, reason, error, digest, attempts, wait, correction, error_type,
          error_place, error_text, error_traceback, rate)
  LEFT JOIN reservation.rate_times(
    %(consumer)s, %(category)s, %(global_positions)s, %(rates)s, %(waits)s, %(intervals)s,
    %(have_waited)s::boolean[]
  ) AS t ON t.global_position = l.global_position
  CROSS JOIN LATERAL (
    SELECT d.ctid AS place, d.state, d.correction FROM reservation.dead_letters d
    WHERE d.consumer = %(consumer)s AND d.category = %(category)s
      AND d.global_position = l.global_position
    LIMIT 1
  ) AS d
  WHERE d.state IN ('waiting', 'parked', 'handled')
    AND d.correction IS NOT DISTINCT FROM l.correction
)
UPDATE reservation.dead_letters d
SET state = CASE WHEN found.wait IS NULL THEN 'dead' ELSE 'waiting' END,
    next_attempt_at = found.at, rate = found.rate,
    entity = found.entity, reason = found.reason, error = found.error, digest = found.digest,
    attempts = found.attempts, process = %(process)s, changed_at = clock_timestamp(),
    error_type = found.error_type, error_place = found.error_place,
    error_text = found.error_text, error_traceback = found.error_traceback
FROM found
WHERE d.ctid = ANY (ARRAY(SELECT place FROM found)) AND d.global_position = found.global_position
