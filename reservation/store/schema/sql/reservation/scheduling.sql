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
AS $$
BEGIN
  IF NOT reservation.may_insert() THEN
    RETURN reservation.send_scheduled(ids, stream_names, types, data, metadata, due);
  END IF;
  RETURN reservation.insert_scheduled(ids, stream_names, types, data, metadata, due, false);
END
$$;

-- The same id is another message where a sender schedules it, or one of another category. Otherwise who
-- chooses the ids of a sender, as who sends a command chooses those of what its handler schedules, could
-- schedule and cancel it beforehand. The log takes one of them, and the others are dead when they are due.
CREATE OR REPLACE FUNCTION reservation.insert_scheduled(
  ids uuid[],
  stream_names text[],
  types text[],
  data jsonb[],
  metadata jsonb[],
  due timestamptz[],
  is_sent boolean
) RETURNS double precision
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
  inserted integer;
  first_in double precision;
  wrong uuid;
BEGIN
  PERFORM reservation.check_names(stream_names, types, metadata);

  INSERT INTO reservation.scheduled (id, due_at, stream_name, type, data, metadata, is_sent)
  SELECT i.id, i.due_at, i.stream_name, i.type, i.data, i.metadata, is_sent
  FROM unnest(ids, due, stream_names, types, data, metadata)
       WITH ORDINALITY AS i(id, due_at, stream_name, type, data, metadata, n)
  ORDER BY i.n
  ON CONFLICT DO NOTHING;
  GET DIAGNOSTICS inserted = ROW_COUNT;

  IF inserted < cardinality(ids) THEN
    SELECT s.id INTO wrong
    FROM unnest(ids, stream_names, types, data, metadata) AS i(id, stream_name, type, data, metadata)
    JOIN reservation.scheduled s
      ON s.id = i.id AND split_part(s.stream_name, '-', 1) = split_part(i.stream_name, '-', 1)
     AND s.is_sent = is_sent
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
    USING unnest(ids, stream_names) AS i(id, stream_name)
    WHERE s.id = i.id AND s.stream_name = i.stream_name AND s.is_sent = is_sent
      AND i.id IN (SELECT m.id FROM message_store.messages m WHERE m.id = ANY (ids));
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
  PERFORM reservation.check_sizes(stream_names, data, metadata);
  PERFORM reservation.check_owner_may_insert();
  RETURN reservation.insert_scheduled(ids, stream_names, types, data, metadata, due, true);
END
$$;

-- Cancels a message that is scheduled. Returns whether it is cancelled, was written before, or is
-- unknown. It waits for whoever is writing it.
CREATE OR REPLACE FUNCTION reservation.cancel_scheduled(message_id uuid) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
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

-- The same for a sender, of what senders have scheduled. What is not in its categories, and what a handler
-- has scheduled, is as unknown as what is not there.
CREATE OR REPLACE FUNCTION reservation.cancel_sent(message_id uuid) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  caller name := coalesce(nullif(current_setting('role'), 'none'), session_user);
  categories text[];
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
  categories := ARRAY(SELECT c.category FROM reservation.sender_categories c
                      WHERE pg_has_role(caller, c.role, 'USAGE'));
  UPDATE reservation.scheduled s SET cancelled_at = coalesce(s.cancelled_at, clock_timestamp())
  WHERE s.id = message_id AND split_part(s.stream_name, '-', 1) = ANY (categories) AND s.is_sent;
  IF FOUND THEN
    RETURN 'cancelled';
  END IF;
  IF EXISTS (
    SELECT FROM message_store.messages m
    WHERE m.id = message_id AND message_store.category(m.stream_name) = ANY (categories)
  ) THEN
    PERFORM reservation.flush_with_commit();
    RETURN 'written';
  END IF;
  RETURN 'unknown';
END
$$;

-- The seconds until a scheduled message is to be written, negative if that is overdue; and for how many
-- seconds the oldest that was refused, is dead, or is not written yet, is overdue. NULL without one.
CREATE OR REPLACE FUNCTION reservation.next_scheduled(
  OUT next_in double precision, OUT overdue double precision
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  due timestamptz;
  again timestamptz;
  refused timestamptz;
  dead timestamptz;
BEGIN
  SELECT s.due_at INTO due FROM reservation.scheduled s
  WHERE s.cancelled_at IS NULL AND s.attempt_at IS NULL
  ORDER BY s.due_at, s.number LIMIT 1;
  -- There are few of them. Of many, those that are tried next.
  SELECT min(s.attempt_at), min(s.due_at) INTO again, refused
  FROM (
    SELECT r.attempt_at, r.due_at FROM reservation.scheduled r
    WHERE r.cancelled_at IS NULL AND r.attempt_at IS NOT NULL AND r.dead_at IS NULL
    ORDER BY r.attempt_at, r.number LIMIT 100
  ) AS s;
  SELECT s.due_at INTO dead FROM reservation.scheduled s
  WHERE s.cancelled_at IS NULL AND s.dead_at IS NOT NULL
  ORDER BY s.due_at, s.number LIMIT 1;
  next_in := extract(epoch FROM least(due, again) - clock_timestamp());
  overdue := greatest(extract(epoch FROM clock_timestamp() - least(due, refused, dead)), 0);
END
$$;

-- The categories that have messages to be written. Each is a step in an index, whatever it has. Here and below
-- a category is compared as a part of a row and leads the order, so that the planner takes no index that
-- begins with the time, and goes through what is scheduled to others.
CREATE OR REPLACE FUNCTION reservation.scheduled_categories(up_to timestamptz) RETURNS SETOF text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
BEGIN
  RETURN QUERY
  WITH RECURSIVE fresh (category) AS (
    (SELECT split_part(s.stream_name, '-', 1) FROM reservation.scheduled s
     WHERE s.cancelled_at IS NULL AND s.attempt_at IS NULL
     ORDER BY split_part(s.stream_name, '-', 1) LIMIT 1)
    UNION ALL
    SELECT (SELECT split_part(s.stream_name, '-', 1) FROM reservation.scheduled s
            WHERE s.cancelled_at IS NULL AND s.attempt_at IS NULL
              AND split_part(s.stream_name, '-', 1) > fresh.category
            ORDER BY split_part(s.stream_name, '-', 1) LIMIT 1)
    FROM fresh WHERE fresh.category IS NOT NULL
  ), refused (category) AS (
    (SELECT split_part(s.stream_name, '-', 1) FROM reservation.scheduled s
     WHERE s.cancelled_at IS NULL AND s.attempt_at IS NOT NULL AND s.dead_at IS NULL
     ORDER BY split_part(s.stream_name, '-', 1) LIMIT 1)
    UNION ALL
    SELECT (SELECT split_part(s.stream_name, '-', 1) FROM reservation.scheduled s
            WHERE s.cancelled_at IS NULL AND s.attempt_at IS NOT NULL AND s.dead_at IS NULL
              AND split_part(s.stream_name, '-', 1) > refused.category
            ORDER BY split_part(s.stream_name, '-', 1) LIMIT 1)
    FROM refused WHERE refused.category IS NOT NULL
  )
  SELECT f.category FROM fresh f
  WHERE (SELECT true FROM reservation.scheduled s
         WHERE s.cancelled_at IS NULL AND s.attempt_at IS NULL
           AND (split_part(s.stream_name, '-', 1), s.due_at)
               BETWEEN (f.category, '-infinity') AND (f.category, up_to)
         ORDER BY split_part(s.stream_name, '-', 1), s.due_at, s.number LIMIT 1)
  UNION
  SELECT r.category FROM refused r
  WHERE (SELECT true FROM reservation.scheduled s
         WHERE s.cancelled_at IS NULL AND s.attempt_at IS NOT NULL AND s.dead_at IS NULL
           AND (split_part(s.stream_name, '-', 1), s.attempt_at)
               BETWEEN (r.category, '-infinity') AND (r.category, up_to)
         ORDER BY split_part(s.stream_name, '-', 1), s.attempt_at, s.number LIMIT 1);
END
$$;
