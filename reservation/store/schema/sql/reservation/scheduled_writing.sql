-- Writing the messages that are due.

-- Writes messages that are due, up to so many, of each category in the order of their times. What is due is
-- judged by the clock that gives them their times, so none has one from before it was due. Only one session
-- does so at a time; another one returns at once. Returns how many were written, how many the log refused, and
-- the seconds until the next one.
--
-- What is a fault of the server, and of no message, is raised: a lost race, a server that takes no
-- writes, a lack of memory or space.
--
-- This and the two functions below write to the log, and so do not set the search_path: see writing.sql.
CREATE OR REPLACE FUNCTION reservation.write_scheduled(
  most integer, OUT written integer, OUT refused integer, OUT next_in double precision
)
LANGUAGE plpgsql VOLATILE
SET lock_timeout = '100ms'
AS $$
DECLARE
  found_ pg_catalog.record;
  done pg_catalog.record;
  one pg_catalog.text;
BEGIN
  written := 0;
  refused := 0;
  found_ := reservation.lock_due_categories();
  next_in := found_.next_in;
  IF found_.categories IS NULL THEN
    RETURN;
  END IF;
  FOREACH one IN ARRAY found_.categories LOOP
    done := reservation.write_scheduled_of(
      one, found_.up_to, most, pg_catalog.cardinality(found_.categories));
    written := written OPERATOR(pg_catalog.+) done.written;
    refused := refused OPERATOR(pg_catalog.+) done.refused;
  END LOOP;
  SELECT n.next_in INTO next_in FROM reservation.next_scheduled() AS n;
END
$$;

-- Locks the categories in which messages are due; NULL if there is none, or if another session writes what is
-- due.
--
-- It takes the locks of categories first and then those of rows, as others do, and waits for neither
-- while it holds any. A category that somebody else has locked is left for the next call, unless all of
-- them are locked: then it waits for one, for a moment.
CREATE OR REPLACE FUNCTION reservation.lock_due_categories(
  OUT categories text[], OUT up_to timestamptz, OUT next_in double precision
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  found_categories text[];
  locked text[] := '{}';
  busy text[] := '{}';
  has_waited boolean := false;
  one text;
BEGIN
  up_to := clock_timestamp();
  SELECT n.next_in INTO next_in FROM reservation.next_scheduled() AS n;
  -- The second number is one that notices do not use.
  IF next_in IS NULL OR next_in > 0 OR NOT pg_try_advisory_xact_lock(-882341236, 4096) THEN
    RETURN;
  END IF;

  WHILE locked = '{}' LOOP
    found_categories := ARRAY(SELECT c.name FROM reservation.scheduled_categories(up_to) AS c(name)
                              WHERE c.name <> ALL (busy));
    IF found_categories <> '{}' THEN
      FOREACH one IN ARRAY found_categories LOOP
        IF pg_try_advisory_xact_lock(message_store.hash_64(one)) THEN
          locked := locked || one;
        ELSE
          busy := busy || one;
        END IF;
      END LOOP;
    ELSIF busy = '{}' OR has_waited THEN
      RETURN;
    ELSE
      BEGIN
        PERFORM pg_advisory_xact_lock(message_store.hash_64(busy[1]));
      EXCEPTION WHEN lock_not_available THEN
        RETURN;
      END;
      has_waited := true;
      busy := '{}';
    END IF;
  END LOOP;
  categories := locked;
END
$$;

-- Writes the messages of a category that are due, as one of so many categories. If the log refuses one of
-- them, all are written one by one, as long as that takes no longer than a moment; others are left for the
-- next call, which begins with what is due and was not refused yet.
CREATE OR REPLACE FUNCTION reservation.write_scheduled_of(
  category text, up_to timestamptz, most integer, categories integer, OUT written integer, OUT refused integer
)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_variable
DECLARE
  due pg_catalog.record;
  number pg_catalog.int8;
  failed pg_catalog.text;
  violated pg_catalog.text;
  until pg_catalog.timestamptz;
BEGIN
  due := reservation.take_scheduled(category, up_to, most, categories);
  written := due.known;
  refused := due.taken;
  IF due.numbers IS NOT NULL THEN
    BEGIN
      PERFORM reservation.write_messages(
        due.ids, due.stream_names, due.types, due.data, due.metadata, NULL);
      PERFORM reservation.forget_scheduled(due.numbers);
      written := written OPERATOR(pg_catalog.+) pg_catalog.cardinality(due.numbers);
    EXCEPTION WHEN OTHERS THEN
      GET STACKED DIAGNOSTICS violated = CONSTRAINT_NAME;
      IF reservation.is_fault_of_server(SQLSTATE, violated, ARRAY['messages_stream']) THEN
        RAISE;
      END IF;
      PERFORM reservation.try_scheduled_singly(due.numbers);
    END;
  END IF;

  until := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+)
    ('100 ms'::pg_catalog.interval OPERATOR(pg_catalog./) categories::pg_catalog.float8);
  FOREACH number IN ARRAY reservation.refused_scheduled(category, most, categories) LOOP
    failed := reservation.write_scheduled_one(number);
    IF failed OPERATOR(pg_catalog.=) '' THEN
      written := written OPERATOR(pg_catalog.+) 1;
    ELSIF failed IS NOT NULL THEN
      refused := refused OPERATOR(pg_catalog.+) 1;
    END IF;
    -- After a lock that was waited for, each of the others might wait for the same one.
    EXIT WHEN failed OPERATOR(pg_catalog.=) '55P03'
      OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>) until;
  END LOOP;
END
$$;

-- Writes one message, or notes that the log refuses it. Returns the SQLSTATE then, '' if it is written,
-- and NULL if somebody else has it.
CREATE OR REPLACE FUNCTION reservation.write_scheduled_one(number bigint) RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  due pg_catalog.record;
  violated pg_catalog.text;
BEGIN
  due := reservation.lock_scheduled(ARRAY[number]);
  IF due.numbers IS NULL THEN
    RETURN NULL;
  END IF;
  BEGIN
    PERFORM reservation.write_message(
      due.ids[1], due.stream_names[1], due.types[1], due.data[1], due.metadata[1], NULL);
    PERFORM reservation.forget_scheduled(due.numbers);
    RETURN '';
  EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS violated = CONSTRAINT_NAME;
    IF reservation.is_fault_of_server(SQLSTATE, violated, ARRAY['messages_stream', 'messages_id']) THEN
      RAISE;
    END IF;
    PERFORM reservation.put_off_scheduled(number, SQLSTATE, violated, SQLERRM);
    RETURN SQLSTATE;
  END;
END
$$;

-- Whether an error is no message's. Of the constraints, those are given that are violated where another
-- transaction wrote what the snapshot of an isolated one does not show.
CREATE OR REPLACE FUNCTION reservation.is_fault_of_server(
  state text, violated text, constraints text[]
) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN substr(state, 1, 2) IN ('25', '40', '53', '57', '58')
  OR state = '23505' AND violated = ANY (constraints);

-- Of a category takes what is due and was not refused yet, as one of so many categories, and leaves the rest
-- for the next call once it has a megabyte at hand. Messages whose ids the log has are found together,
-- because somebody may have taken the ids of many; they are counted as known or taken.
CREATE OR REPLACE FUNCTION reservation.take_scheduled(
  category text, up_to timestamptz, most integer, categories integer,
  OUT numbers bigint[], OUT ids uuid[], OUT stream_names text[], OUT types text[], OUT data jsonb[],
  OUT metadata jsonb[], OUT known bigint, OUT taken bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
  due record;
BEGIN
  known := 0;
  taken := 0;
  SELECT * INTO due FROM reservation.lock_scheduled(ARRAY(
    SELECT f.number
    FROM (
      SELECT d.number, sum(d.bytes) OVER (ORDER BY d.due_at, d.number) - d.bytes AS before
      FROM (
        SELECT s.number, s.due_at, pg_column_size(s.*) AS bytes
        FROM reservation.scheduled s
        WHERE s.cancelled_at IS NULL AND s.attempt_at IS NULL
          AND (split_part(s.stream_name, '-', 1), s.due_at)
              BETWEEN (category, '-infinity') AND (category, up_to)
        ORDER BY split_part(s.stream_name, '-', 1), s.due_at, s.number
        LIMIT greatest(most / categories, 1)
      ) AS d
    ) AS f
    WHERE f.before < 1000000 / categories));  -- compressed, which can be 255 times as many otherwise
  IF EXISTS (SELECT FROM message_store.messages m WHERE m.id = ANY (due.ids)) THEN
    SELECT settled.written, settled.refused INTO known, taken
    FROM reservation.settle_scheduled(due.numbers) AS settled;
    SELECT * INTO due FROM reservation.lock_scheduled(due.numbers);
  END IF;
  numbers := due.numbers;
  ids := due.ids;
  stream_names := due.stream_names;
  types := due.types;
  data := due.data;
  metadata := due.metadata;
END
$$;

-- The messages of a category that were refused and are to be tried again, as one of so many categories.
CREATE OR REPLACE FUNCTION reservation.refused_scheduled(
  category text, most integer, categories integer
) RETURNS bigint[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
BEGIN
  RETURN ARRAY(
    SELECT s.number FROM reservation.scheduled s
    WHERE s.cancelled_at IS NULL AND s.attempt_at IS NOT NULL AND s.dead_at IS NULL
      AND (split_part(s.stream_name, '-', 1), s.attempt_at)
          BETWEEN (category, '-infinity') AND (category, clock_timestamp())
    ORDER BY split_part(s.stream_name, '-', 1), s.attempt_at, s.number
    LIMIT greatest(most / categories, 1));
END
$$;

-- Of these messages locks those that are still to be written and that nobody else has locked, and returns
-- them in their order.
CREATE OR REPLACE FUNCTION reservation.lock_scheduled(
  INOUT numbers bigint[], OUT ids uuid[], OUT stream_names text[], OUT types text[], OUT data jsonb[],
  OUT metadata jsonb[]
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  SELECT array_agg(s.number ORDER BY s.due_at, s.number),
         array_agg(s.id ORDER BY s.due_at, s.number),
         array_agg(s.stream_name ORDER BY s.due_at, s.number),
         array_agg(s.type ORDER BY s.due_at, s.number),
         array_agg(s.data ORDER BY s.due_at, s.number),
         array_agg(s.metadata ORDER BY s.due_at, s.number)
  INTO numbers, ids, stream_names, types, data, metadata
  FROM (
    SELECT * FROM reservation.scheduled s
    WHERE s.number = ANY (lock_scheduled.numbers) AND s.cancelled_at IS NULL AND s.dead_at IS NULL
    FOR UPDATE SKIP LOCKED
  ) AS s;
END
$$;

-- Of these messages removes those that the log has, and marks as dead those whose ids it has for others.
-- Returns how many there are of each.
CREATE OR REPLACE FUNCTION reservation.settle_scheduled(
  numbers bigint[], OUT written bigint, OUT refused bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  those record;
BEGIN
  SELECT array_agg(s.number) FILTER (WHERE c.says_the_same) AS known,
         array_agg(s.number) FILTER (WHERE NOT c.says_the_same) AS taken
  INTO those
  FROM reservation.scheduled s
  JOIN message_store.messages m ON m.id = s.id
  CROSS JOIN LATERAL (
    SELECT (m.stream_name, m.type, m.data, reservation.untraced(m.metadata)) IS NOT DISTINCT FROM
           (s.stream_name, s.type, s.data, reservation.untraced(s.metadata)) AS says_the_same
  ) AS c
  WHERE s.number = ANY (numbers);
  DELETE FROM reservation.scheduled s WHERE s.number = ANY (those.known);
  GET DIAGNOSTICS written = ROW_COUNT;
  UPDATE reservation.scheduled s
  SET attempts = s.attempts + 1, attempt_at = clock_timestamp(), dead_at = clock_timestamp(),
      error = format('Message id %s is in use for another message', s.id)
  WHERE s.number = ANY (those.taken);
  GET DIAGNOSTICS refused = ROW_COUNT;
END
$$;

CREATE OR REPLACE FUNCTION reservation.forget_scheduled(numbers bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  DELETE FROM reservation.scheduled s WHERE s.number = ANY (numbers);
END
$$;

-- Has messages tried one by one, of which the log refused at least one.
CREATE OR REPLACE FUNCTION reservation.try_scheduled_singly(numbers bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  UPDATE reservation.scheduled s SET attempt_at = clock_timestamp() WHERE s.number = ANY (numbers);
END
$$;

-- Notes that the log refused a message. It is tried again after a second, then two, and so on up to a minute,
-- and is dead after sixty attempts; at once if what it says makes every attempt fail. What is lacking in the
-- database, such as a right, a table or a lock, is waited for however long it takes.
CREATE OR REPLACE FUNCTION reservation.put_off_scheduled(
  number bigint, state text, violated text, error text
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  is_lacking boolean := substr(state, 1, 2) IN ('42', '55', 'XX') OR state = '2200H'
    OR state = '23505' AND violated = 'messages_pkey';
BEGIN
  UPDATE reservation.scheduled s
  SET attempts = s.attempts + 1, error = left(put_off_scheduled.error, 300),
      attempt_at = clock_timestamp() + make_interval(secs => least(60, 2 ^ least(s.attempts, 6))),
      dead_at = CASE WHEN NOT is_lacking
                      AND (s.attempts >= 59 OR substr(state, 1, 2) IN ('22', '54')
                           OR state = '23505' AND violated = 'message_id')
                     THEN clock_timestamp() END
  WHERE s.number = put_off_scheduled.number;
END
$$;
