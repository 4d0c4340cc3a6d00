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
  digest, attempts, process, next_attempt_at, earlier_attempts, error_type, error_place, error_text,
  error_traceback, key_fields
)
SELECT %(consumer)s, %(category)s, l.global_position, l.message_id, l.stream_name, l.type, l.entity,
       CASE l.reason WHEN 'parked' THEN 'parked' ELSE 'dead' END, l.reason, l.error, l.digest,
       l.attempts, %(process)s, clock_timestamp() + make_interval(secs => l.wait),
       CASE WHEN l.wait IS NULL THEN 0 ELSE l.attempts END,
       l.error_type, l.error_place, l.error_text, l.error_traceback,
       CASE jsonb_typeof(%(key_fields)s->l.type) WHEN 'array' THEN
         ARRAY(SELECT jsonb_array_elements_text(%(key_fields)s->l.type)) END
FROM unnest(
  %(global_positions)s::bigint[], %(message_ids)s::uuid[], %(stream_names)s::text[],
  %(types)s::text[], %(entities)s::text[], %(reasons)s::text[], %(errors)s::text[],
  %(digests)s::text[], %(attempts)s::integer[], %(waits)s::float8[], %(error_types)s::text[],
  %(error_places)s::text[], %(error_texts)s::text[], %(error_tracebacks)s::text[]
) AS l (global_position, message_id, stream_name, type, entity, reason, error, digest, attempts, wait,
        error_type, error_place, error_text, error_traceback)
ON CONFLICT (consumer, category, global_position) DO UPDATE
SET message_id = excluded.message_id, stream_name = excluded.stream_name, type = excluded.type,
    entity = excluded.entity, state = excluded.state, reason = excluded.reason,
    error = excluded.error, digest = excluded.digest, attempts = excluded.attempts,
    process = excluded.process, changed_at = clock_timestamp(), next_attempt_at = excluded.next_attempt_at,
    earlier_attempts = excluded.earlier_attempts, error_type = excluded.error_type,
    error_place = excluded.error_place, error_text = excluded.error_text,
    error_traceback = excluded.error_traceback, key_fields = excluded.key_fields
WHERE known.state IN ('handled', 'discarded') AND known.reason <> 'conflict'
   OR known.message_id <> excluded.message_id

-- name: call_next
-- Of each entity the first open letter is handled next, unless it is dead. Gives the entities that
-- still have open letters. A letter is found again by where it is stored: by its key the planner may look
-- for it in all letters of the category, of which many were handled. Nobody changes it meanwhile, because
-- the lock of the letters is held.
WITH heads AS (
  SELECT head.entity, head.place, head.state
  FROM unnest(%(entities)s::text[]) AS e (entity)
  CROSS JOIN LATERAL (
    SELECT d.entity, d.ctid AS place, d.state
    FROM reservation.dead_letters d
    WHERE d.consumer = %(consumer)s AND d.category = %(category)s AND d.entity = e.entity
      AND d.state IN ('dead', 'parked', 'retry')
    ORDER BY d.global_position
    LIMIT 1
  ) AS head
), called AS (
  UPDATE reservation.dead_letters d
  SET state = 'retry', changed_at = clock_timestamp()
  WHERE d.ctid = ANY (ARRAY(SELECT place FROM heads WHERE state = 'parked'))
)
SELECT entity FROM heads

-- name: stranded
-- The letters that are parked with nothing open before them, so that nobody handles them.
(SELECT d.*
FROM reservation.stranded_letters(%(consumer)s, %(category)s) AS s (global_position)
CROSS JOIN LATERAL (
  SELECT * FROM reservation.dead_letters d
  WHERE d.consumer = %(consumer)s AND d.category = %(category)s
    AND d.global_position = s.global_position
  LIMIT 1
) AS d)

-- name: has_open
SELECT reservation.has_open_letter(%(consumer)s, %(category)s)

-- name: heads
-- Of each of some entities the place of its first open letter, in whichever partition that is.
SELECT head.entity, head.global_position
FROM unnest(%(entities)s::text[]) AS e (entity)
CROSS JOIN LATERAL (
  SELECT d.entity, d.global_position
  FROM reservation.dead_letters d
  WHERE d.consumer = %(consumer)s AND d.category = %(category)s AND d.entity = e.entity
    AND d.state IN ('dead', 'parked', 'retry')
  ORDER BY d.global_position
  LIMIT 1
) AS head

-- name: blocked
SELECT DISTINCT entity
FROM reservation.dead_letters
WHERE consumer = %(consumer)s AND category = %(category)s
  AND state IN ('dead', 'parked', 'retry') AND entity IS NOT NULL
  AND reservation.partition_of(stream_name, %(size)s) = ANY(%(partitions)s)

-- name: line_up
-- The letters to be handled: of each entity that has a letter to be retried, or one that has waited for its next
-- attempt until now, those up to the next one that is dead or waits. One in a partition that is not held holds
-- them up as well, unless it is only parked: across partitions, messages have no order. A letter comes with
-- the data that it was given. A message that is no longer in the store has NULLs. They end with the message that
-- brings the bytes of data and metadata, as they are stored, to a megabyte.
WITH due AS (
  SELECT global_position, message_id, entity, attempts, stream_name, earlier_attempts, correction, data
  FROM reservation.dead_letters
  WHERE consumer = %(consumer)s AND category = %(category)s AND state = 'retry'
    AND reservation.partition_of(stream_name, %(size)s) = ANY(%(partitions)s)
  UNION ALL
  (
    SELECT global_position, message_id, entity, attempts, stream_name, earlier_attempts, correction, data
    FROM reservation.dead_letters
    WHERE consumer = %(consumer)s AND category = %(category)s AND state = 'dead'
      AND next_attempt_at <= statement_timestamp()
      AND reservation.partition_of(stream_name, %(size)s) = ANY(%(partitions)s)
    ORDER BY next_attempt_at
    LIMIT %(limit)s
  )
), line_up AS (
  SELECT * FROM due WHERE entity IS NULL
  UNION ALL
  SELECT line.global_position, line.message_id, line.entity, line.attempts, line.stream_name,
         line.earlier_attempts, line.correction, line.data
  FROM (SELECT DISTINCT entity FROM due WHERE entity IS NOT NULL) AS e
  CROSS JOIN LATERAL (
    SELECT first.*,
           bool_or(NOT first.own OR first.state = 'dead'
                   AND (first.next_attempt_at <= statement_timestamp()) IS NOT TRUE)
             OVER (ORDER BY first.global_position) AS waits
    FROM (
      SELECT d.*
      FROM (
        SELECT d.global_position, d.message_id, d.entity, d.attempts, d.stream_name, d.state,
               d.next_attempt_at, d.earlier_attempts, d.correction, d.data,
               reservation.partition_of(d.stream_name, %(size)s) = ANY(%(partitions)s) AS own
        FROM reservation.dead_letters d
        WHERE d.consumer = %(consumer)s AND d.category = %(category)s AND d.entity = e.entity
          AND d.state IN ('dead', 'parked', 'retry')
        ORDER BY d.global_position
        OFFSET 0
      ) AS d
      WHERE d.own OR d.state <> 'parked'
      LIMIT %(limit)s
    ) AS first
  ) AS line
  WHERE NOT line.waits
)
SELECT l.global_position, l.entity, l.attempts, l.earlier_attempts,
       reservation.partition_of(l.letter_stream, %(size)s), l.lined_up, l.correction, l.given::varchar,
       l.id::varchar, l.stream_name::varchar, reservation.readable_type(l.type),
       l.position, l.message_position, reservation.readable_text(l.data),
       reservation.readable_text(l.metadata), reservation.readable_time(l.time)
FROM (
  SELECT l.global_position, l.entity, l.attempts, l.earlier_attempts, l.stream_name AS letter_stream,
         l.correction, l.data AS given, m.id, m.stream_name, m.type, m.position,
         m.global_position AS message_position, m.data, m.metadata, m.time, count(*) OVER () AS lined_up,
         sum(coalesce(pg_column_size(l.data), 0) + coalesce(pg_column_size(m.data), 0)
             + coalesce(pg_column_size(m.metadata), 0))
           OVER (ORDER BY l.global_position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
  FROM (SELECT * FROM line_up ORDER BY global_position LIMIT %(limit)s) AS l
  LEFT JOIN LATERAL (
    SELECT * FROM message_store.messages
    WHERE global_position = l.global_position AND id = l.message_id
    LIMIT 1
  ) AS m ON true
) AS l
WHERE coalesce(l.before, 0) < 1000000
ORDER BY l.global_position

-- name: next_attempt
-- The seconds until the next attempt at any of the letters that wait for one; NULL if none does.
SELECT extract(epoch FROM (
  SELECT next_attempt_at
  FROM reservation.dead_letters
  WHERE consumer = %(consumer)s AND category = %(category)s AND state = 'dead'
    AND next_attempt_at IS NOT NULL
    AND reservation.partition_of(stream_name, %(size)s) = ANY(%(partitions)s)
  ORDER BY next_attempt_at
  LIMIT 1
) - clock_timestamp())::float8

-- name: waiting
-- How many letters wait for their next attempt.
SELECT count(*)
FROM reservation.dead_letters
WHERE consumer = %(consumer)s AND category = %(category)s AND state = 'dead'
  AND next_attempt_at IS NOT NULL
  AND reservation.partition_of(stream_name, %(size)s) = ANY(%(partitions)s)

-- name: attempt
UPDATE reservation.dead_letters d
SET attempts = attempts + 1, changed_at = clock_timestamp()
WHERE consumer = %(consumer)s AND category = %(category)s
  AND global_position = %(global_position)s
  AND (d.state IN ('parked', 'retry') OR d.state = 'dead' AND d.next_attempt_at IS NOT NULL)
RETURNING attempts

-- name: take_back
UPDATE reservation.dead_letters d
SET attempts = attempts - 1, changed_at = clock_timestamp()
WHERE consumer = %(consumer)s AND category = %(category)s
  AND global_position = %(global_position)s AND attempts > 0
  AND (d.state IN ('parked', 'retry') OR d.state = 'dead' AND d.next_attempt_at IS NOT NULL)

-- name: mark_handled
-- Only as what they were handled as: a letter that has been corrected meanwhile stays. Each is found
-- as by the statement above, and again by where it is stored, as by the one that calls the next.
WITH found AS MATERIALIZED (
  SELECT d.place, l.*
  FROM unnest(%(global_positions)s::bigint[], %(corrections)s::bigint[])
       AS l (global_position, correction)
  CROSS JOIN LATERAL (
    SELECT d.ctid AS place, d.state, d.next_attempt_at, d.correction FROM reservation.dead_letters d
    WHERE d.consumer = %(consumer)s AND d.category = %(category)s
      AND d.global_position = l.global_position
    LIMIT 1
  ) AS d
  WHERE (d.state IN ('parked', 'retry') OR d.state = 'dead' AND d.next_attempt_at IS NOT NULL)
    AND d.correction IS NOT DISTINCT FROM l.correction
)
UPDATE reservation.dead_letters d
SET state = 'handled', process = %(process)s, changed_at = clock_timestamp()
FROM found
WHERE d.ctid = ANY (ARRAY(SELECT place FROM found)) AND d.global_position = found.global_position

-- name: bury_again
-- Dead again, or waiting for another attempt. They are found as those that were handled.
WITH found AS MATERIALIZED (
  SELECT d.place, l.*
  FROM unnest(
    %(global_positions)s::bigint[], %(entities)s::text[], %(reasons)s::text[], %(errors)s::text[],
    %(digests)s::text[], %(attempts)s::integer[], %(waits)s::float8[], %(corrections)s::bigint[],
    %(error_types)s::text[], %(error_places)s::text[], %(error_texts)s::text[],
    %(error_tracebacks)s::text[]
  ) AS l (global_position, entity, reason, error, digest, attempts, wait, correction, error_type,
          error_place, error_text, error_traceback)
  CROSS JOIN LATERAL (
    SELECT d.ctid AS place, d.state, d.next_attempt_at, d.correction FROM reservation.dead_letters d
    WHERE d.consumer = %(consumer)s AND d.category = %(category)s
      AND d.global_position = l.global_position
    LIMIT 1
  ) AS d
  WHERE (d.state IN ('parked', 'retry', 'handled') OR d.state = 'dead' AND d.next_attempt_at IS NOT NULL)
    AND d.correction IS NOT DISTINCT FROM l.correction
)
UPDATE reservation.dead_letters d
SET state = 'dead', entity = found.entity, reason = found.reason, error = found.error,
    digest = found.digest, attempts = found.attempts, process = %(process)s, changed_at = clock_timestamp(),
    next_attempt_at = clock_timestamp() + make_interval(secs => found.wait),
    earlier_attempts = CASE WHEN found.wait IS NULL THEN 0 ELSE found.attempts END,
    error_type = found.error_type, error_place = found.error_place,
    error_text = found.error_text, error_traceback = found.error_traceback
FROM found
WHERE d.ctid = ANY (ARRAY(SELECT place FROM found)) AND d.global_position = found.global_position

-- name: lock_letters
SELECT pg_advisory_xact_lock(hashtextextended('reservation.dead_letters', 0))

-- name: letters
-- All that is shown of letters, wherever they come from.
SELECT d.consumer, d.category, d.global_position, d.message_id::text, d.stream_name, d.type, d.entity,
       d.state, d.reason, d.error, d.error_type, d.error_place, d.digest, d.attempts, d.process, d.created_at, d.changed_at,
       d.correction IS NOT NULL,
       CASE WHEN d.state = 'dead' THEN d.next_attempt_at END,
       CASE WHEN d.state = 'parked' THEN (
         SELECT min(h.global_position)
         FROM reservation.dead_letters h
         WHERE h.consumer = d.consumer AND h.category = d.category AND h.entity = d.entity
           AND h.state IN ('dead', 'parked', 'retry')
       ) END
FROM {letters} d
ORDER BY d.consumer, d.category, d.global_position

-- name: chosen
(SELECT d.* FROM reservation.dead_letters d
WHERE (%(consumer)s::text IS NULL OR d.consumer = %(consumer)s)
  AND (%(category)s::text IS NULL OR d.category = %(category)s)
  AND (%(entity)s::text IS NULL OR d.entity = %(entity)s)
  AND (%(states)s::text[] IS NULL OR d.state = ANY(%(states)s))
  AND (%(global_positions)s::bigint[] IS NULL OR d.global_position = ANY(%(global_positions)s)))

-- name: count_waiting
SELECT count(*)
FROM reservation.dead_letters
WHERE consumer = %(consumer)s AND category = %(category)s AND entity = ANY(%(entities)s)
  AND state = 'parked'

-- name: change_state
UPDATE reservation.dead_letters
SET state = %(state)s, attempts = CASE %(state)s WHEN 'retry' THEN 0 ELSE attempts END,
    changed_at = clock_timestamp()
WHERE consumer = %(consumer)s AND category = %(category)s
  AND global_position = ANY(%(global_positions)s)

-- name: message
SELECT reservation.readable_text(m.data), reservation.readable_text(m.metadata),
       reservation.readable_time(m.time), m.position
FROM message_store.messages m
WHERE m.global_position = %(global_position)s AND m.id = %(message_id)s::uuid

-- name: raised
-- What is kept of the exception of a letter, if that was asked for.
SELECT d.error_text, d.error_traceback
FROM reservation.dead_letters d
WHERE d.consumer = %(consumer)s AND d.category = %(category)s
  AND d.global_position = %(global_position)s

-- name: correction
-- The data that a letter was given, and who gave it, when and why.
SELECT h.decided_by, h.on_behalf_of, h.decided_at, h.reason, d.data::text
FROM reservation.dead_letters d
JOIN reservation.letter_decisions h ON h.number = d.correction
WHERE d.consumer = %(consumer)s AND d.category = %(category)s
  AND d.global_position = %(global_position)s

-- name: retry_with_data
SELECT reservation.retry_with_data(
  %(consumer)s, %(category)s, %(global_position)s, %(data)s::jsonb, %(reason)s, %(on_behalf_of)s,
  %(request)s)
