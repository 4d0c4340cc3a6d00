-- Messages that are written later. Whoever may write them may schedule them; a consumer's process, of
-- whatever component, writes them when they are due by the server's clock.
--
-- That is one call and one commit, so it leaves nothing half done. The id of a message is unique in the
-- log, so it is written once, whoever writes it and however often.

-- Schedules messages. The same id again is the same message again, provided that it says the same; the
-- time of the first stands. One that was cancelled stays so, and one that is in the log is not written
-- again. Returns the seconds until the first of them is due.
CREATE OR REPLACE FUNCTION reservation.schedule_messages(
  ids uuid[],
  stream_names text[],
  types text[],
  data jsonb[],
  metadata jsonb[],
  due timestamptz[]
) RETURNS double precision
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
AS $$
#variable_conflict use_variable
DECLARE
  inserted integer;
  first_in double precision;
  wrong uuid;
BEGIN
  IF NOT reservation.may_insert() THEN
    RETURN reservation.send_scheduled(ids, stream_names, types, data, metadata, due);
  END IF;

  INSERT INTO reservation.scheduled (id, due_at, stream_name, type, data, metadata)
  SELECT i.id, i.due_at, i.stream_name, i.type, i.data, i.metadata
  FROM unnest(ids, due, stream_names, types, data, metadata)
       WITH ORDINALITY AS i(id, due_at, stream_name, type, data, metadata, n)
  ORDER BY i.n
  ON CONFLICT DO NOTHING;
  GET DIAGNOSTICS inserted = ROW_COUNT;

  IF inserted < cardinality(ids) THEN
    SELECT s.id INTO wrong
    FROM unnest(ids, stream_names, types, data, metadata) AS i(id, stream_name, type, data, metadata)
    JOIN reservation.scheduled s ON s.id = i.id
    WHERE (s.stream_name, s.type, s.data, reservation.untraced(s.metadata))
          IS DISTINCT FROM (i.stream_name, i.type, i.data, reservation.untraced(i.metadata))
    LIMIT 1;
  END IF;
  -- After the insertion, which waits for whoever is writing the same message.
  IF wrong IS NULL AND EXISTS (SELECT FROM message_store.messages m WHERE m.id = ANY (ids)) THEN
    SELECT m.id INTO wrong
    FROM unnest(ids, stream_names, types, data, metadata) AS i(id, stream_name, type, data, metadata)
    JOIN message_store.messages m ON m.id = i.id
    WHERE (m.stream_name, m.type, m.data, reservation.untraced(m.metadata))
          IS DISTINCT FROM (i.stream_name, i.type, i.data, reservation.untraced(i.metadata))
    LIMIT 1;
    DELETE FROM reservation.scheduled s
    WHERE s.id IN (SELECT m.id FROM message_store.messages m WHERE m.id = ANY (ids));
  END IF;
  IF wrong IS NOT NULL THEN  -- without its stream, which a sender may not be meant to know
    PERFORM reservation.flush_now();
    RAISE unique_violation USING
      MESSAGE = format('Message id %s is in use for another message', wrong),
      CONSTRAINT = 'message_id', TABLE = 'messages', SCHEMA = 'message_store';
  END IF;

  SELECT extract(epoch FROM min(d) - clock_timestamp()) INTO first_in FROM unnest(due) AS d;
  -- Consumers look at intervals of a little more than a second. What is due later they know of in time.
  IF first_in < 3 AND reservation.gives_notices() THEN
    PERFORM pg_notify('reservation.scheduled', '');
  END IF;
  RETURN first_in;
END
$$;

-- Whether writers give notice, and this session does not say otherwise.
CREATE OR REPLACE FUNCTION reservation.gives_notices() RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT current_setting('reservation.notices', true) IS DISTINCT FROM 'off' AND EXISTS (
    SELECT FROM pg_trigger
    WHERE tgrelid = to_regclass('message_store.messages') AND tgname = 'reservation_notice'
      AND tgfoid = to_regprocedure('reservation.give_notice()') AND tgenabled IN ('O', 'A'))
$$;

-- Schedules one message, at a time or after a delay from now, by the server's clock.
CREATE OR REPLACE FUNCTION reservation.schedule_message(
  id uuid,
  stream_name text,
  type text,
  data jsonb,
  metadata jsonb,
  due_at timestamptz,
  delay interval
) RETURNS double precision
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT reservation.schedule_messages(
    ARRAY[id], ARRAY[stream_name], ARRAY[type], ARRAY[data], ARRAY[metadata],
    ARRAY[coalesce(due_at, clock_timestamp() + delay)])
$$;

-- The scheduling of a role that may not insert into the log, for send_messages explains which. The
-- categories are checked now; what a role has scheduled is written although it loses the right later.
CREATE OR REPLACE FUNCTION reservation.send_scheduled(
  ids uuid[],
  stream_names text[],
  types text[],
  data jsonb[],
  metadata jsonb[],
  due timestamptz[]
) RETURNS double precision
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM reservation.check_may_send(stream_names);
  PERFORM reservation.check_owner_may_insert();
  RETURN reservation.schedule_messages(ids, stream_names, types, data, metadata, due);
END
$$;

-- Cancels a message that is scheduled. Returns whether it is cancelled, was written before, or is
-- unknown. It waits for whoever is writing it.
CREATE OR REPLACE FUNCTION reservation.cancel_scheduled(message_id uuid) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
  IF NOT has_column_privilege('reservation.scheduled', 'cancelled_at', 'UPDATE') THEN
    RETURN reservation.cancel_sent(message_id);
  END IF;
  UPDATE reservation.scheduled SET cancelled_at = clock_timestamp()
  WHERE id = message_id AND cancelled_at IS NULL;
  IF FOUND OR EXISTS (SELECT FROM reservation.scheduled WHERE id = message_id) THEN
    RETURN 'cancelled';
  END IF;
  IF EXISTS (SELECT FROM message_store.messages m WHERE m.id = message_id) THEN
    PERFORM reservation.flush_with_commit();
    RETURN 'written';
  END IF;
  RETURN 'unknown';
END
$$;

-- The same for a sender. What is not in its categories is as unknown as what is not there.
CREATE OR REPLACE FUNCTION reservation.cancel_sent(message_id uuid) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
  caller name := coalesce(nullif(current_setting('role'), 'none'), session_user);
BEGIN
  IF NOT has_column_privilege('reservation.scheduled', 'cancelled_at', 'UPDATE') THEN
    RAISE insufficient_privilege USING
      MESSAGE = format('The role %s, with whose rights senders cancel, may not update '
                       'reservation.scheduled', current_user),
      HINT = 'Grant it what it lacks, or let the owner of the store own the schema reservation.';
  END IF;
  -- As check_may_send does, so that no sender can leave code that cancels with such rights.
  IF has_column_privilege(caller, 'reservation.scheduled', 'cancelled_at', 'UPDATE') THEN
    RAISE insufficient_privilege USING
      MESSAGE = format('The role %s may cancel without being a sender, and this call came from '
                       'another role', caller),
      HINT = 'Call cancel_scheduled directly, as the role of the session.';
  END IF;
  IF NOT EXISTS (
    SELECT FROM (
      SELECT s.stream_name FROM reservation.scheduled s WHERE s.id = message_id
      UNION ALL
      SELECT m.stream_name FROM message_store.messages m WHERE m.id = message_id
    ) AS found
    JOIN reservation.sender_categories c ON c.category = message_store.category(found.stream_name)
    WHERE pg_has_role(caller, c.role, 'USAGE')
  ) THEN
    RETURN 'unknown';
  END IF;
  RETURN reservation.cancel_scheduled(message_id);
END
$$;

-- The seconds until a scheduled message is to be written, negative if that is overdue; and for how many
-- seconds the oldest that was refused, or is not written yet, is overdue. NULL without one.
CREATE OR REPLACE FUNCTION reservation.next_scheduled(
  OUT next_in double precision, OUT overdue double precision
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
SET enable_bitmapscan = off
AS $$
DECLARE
  due timestamptz;
  again timestamptz;
  refused timestamptz;
BEGIN
  SELECT s.due_at INTO due FROM reservation.scheduled s
  WHERE s.cancelled_at IS NULL AND s.attempt_at IS NULL
  ORDER BY s.due_at, s.number LIMIT 1;
  -- There are few of them. Of many, those that are tried next.
  SELECT min(s.attempt_at), min(s.due_at) INTO again, refused
  FROM (
    SELECT r.attempt_at, r.due_at FROM reservation.scheduled r
    WHERE r.cancelled_at IS NULL AND r.attempt_at IS NOT NULL
    ORDER BY r.attempt_at, r.number LIMIT 100
  ) AS s;
  next_in := extract(epoch FROM least(due, again) - clock_timestamp());
  overdue := greatest(extract(epoch FROM clock_timestamp() - least(due, refused)), 0);
END
$$;

-- Writes messages that are due, up to so many, in the order of their times. Only one session does so at a
-- time; another one returns at once. Returns how many were written, how many the log refused, and the
-- seconds until the next one.
--
-- It takes the locks of categories first and then those of rows, as others do, and waits for neither
-- while it holds any. A category that somebody else has locked is left for the next call, unless all of
-- them are locked: then it waits for one, for a moment. It leaves the rest for the next call, too, once it
-- has some megabytes at hand.
--
-- A message that the log refuses, because of a trigger for example, does not hold up others. It is tried
-- again after a second, then two, and so on up to a minute, for ever. What is a fault of the server, and
-- of no message, is raised: a conflict, a server that takes no writes, a lack of memory or space.
CREATE OR REPLACE FUNCTION reservation.write_scheduled(
  most integer, OUT written integer, OUT refused integer, OUT next_in double precision
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
SET enable_bitmapscan = off
SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
  up_to timestamptz := clock_timestamp();
  found_ids uuid[];
  found_categories text[];
  locked text[] := '{}';
  busy text[] := '{}';
  has_waited boolean := false;
  one text;
  failed text;
  violated text;
  due record;
BEGIN
  written := 0;
  refused := 0;
  SELECT n.next_in INTO next_in FROM reservation.next_scheduled() AS n;
  -- The second number is one that notices do not use.
  IF next_in IS NULL OR next_in > 0 OR NOT pg_try_advisory_xact_lock(-882341236, 4096) THEN
    RETURN;
  END IF;

  WHILE locked = '{}' LOOP
    SELECT array_agg(f.id), array_agg(DISTINCT f.category) INTO found_ids, found_categories
    FROM (
      SELECT d.id, d.category, sum(d.bytes) OVER (ORDER BY d.at, d.number) - d.bytes AS before
      FROM (
        (SELECT s.id, s.due_at AS at, s.number, message_store.category(s.stream_name) AS category,
                pg_column_size(s.*) AS bytes
         FROM reservation.scheduled s
         WHERE s.cancelled_at IS NULL AND s.attempt_at IS NULL AND s.due_at <= up_to
           AND message_store.category(s.stream_name) <> ALL (busy)
         ORDER BY s.due_at, s.number LIMIT most)
        UNION ALL
        (SELECT s.id, s.attempt_at, s.number, message_store.category(s.stream_name),
                pg_column_size(s.*)
         FROM reservation.scheduled s
         WHERE s.cancelled_at IS NULL AND s.attempt_at IS NOT NULL AND s.attempt_at <= up_to
           AND message_store.category(s.stream_name) <> ALL (busy)
         ORDER BY s.attempt_at, s.number LIMIT most)
      ) AS d
      ORDER BY d.at, d.number
      LIMIT most
    ) AS f
    WHERE f.before < 4000000;  -- compressed
    IF found_ids IS NOT NULL THEN
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

  SELECT array_agg(s.id ORDER BY s.due_at, s.number) AS ids,
         array_agg(s.stream_name ORDER BY s.due_at, s.number) AS stream_names,
         array_agg(s.type ORDER BY s.due_at, s.number) AS types,
         array_agg(s.data ORDER BY s.due_at, s.number) AS data,
         array_agg(s.metadata ORDER BY s.due_at, s.number) AS metadata
  INTO due
  FROM (
    SELECT * FROM reservation.scheduled s
    WHERE s.id = ANY (found_ids) AND s.cancelled_at IS NULL
      AND message_store.category(s.stream_name) = ANY (locked)
    FOR UPDATE SKIP LOCKED
  ) AS s;
  IF due.ids IS NOT NULL THEN
    BEGIN
      PERFORM reservation.write_messages(
        due.ids, due.stream_names, due.types, due.data, due.metadata, NULL);
      DELETE FROM reservation.scheduled s WHERE s.id = ANY (due.ids);
      written := cardinality(due.ids);
    EXCEPTION WHEN OTHERS THEN
      GET STACKED DIAGNOSTICS violated = CONSTRAINT_NAME;
      -- Of the last, the first message of a stream was written by somebody whom the snapshot of an isolated
      -- transaction does not show.
      IF substr(SQLSTATE, 1, 2) IN ('25', '40', '53', '57', '58') OR violated = 'messages_stream' THEN
        RAISE;
      END IF;
      FOR n IN 1 .. cardinality(due.ids) LOOP
        failed := reservation.write_scheduled_one(
          due.ids[n], due.stream_names[n], due.types[n], due.data[n], due.metadata[n]);
        IF failed IS NULL THEN
          written := written + 1;
        ELSE
          refused := refused + 1;
        END IF;
        EXIT WHEN failed = '55P03';  -- each of the others might wait for the same lock
      END LOOP;
    END;
  END IF;
  SELECT n.next_in INTO next_in FROM reservation.next_scheduled() AS n;
END
$$;

-- Writes one message, or notes that the log refuses it, and then returns the SQLSTATE.
CREATE OR REPLACE FUNCTION reservation.write_scheduled_one(
  message_id uuid, stream_name text, type text, data jsonb, metadata jsonb
) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
  PERFORM reservation.write_message(message_id, stream_name, type, data, metadata, NULL);
  DELETE FROM reservation.scheduled s WHERE s.id = message_id;
  RETURN NULL;
EXCEPTION WHEN OTHERS THEN
  IF substr(SQLSTATE, 1, 2) IN ('25', '40', '53', '57', '58') THEN
    RAISE;
  END IF;
  UPDATE reservation.scheduled s
  SET attempts = s.attempts + 1, error = left(SQLERRM, 300),
      attempt_at = clock_timestamp() + make_interval(secs => least(60, 2 ^ least(s.attempts, 6)))
  WHERE s.id = message_id;
  RETURN SQLSTATE;
END
$$;
