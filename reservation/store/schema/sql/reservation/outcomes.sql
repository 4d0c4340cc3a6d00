-- What became of a command, of what answers.sql finds of it.

-- Of a message that was passed without an event: whether what a strategy keeps says that it was handled;
-- NULL if that is no longer kept.
CREATE OR REPLACE FUNCTION reservation.is_remembered(
  question jsonb, consumer text, entity_stream text, message message_store.messages
) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT CASE
    WHEN jsonb_typeof(question->'processed') IN ('string', 'boolean') THEN (
      SELECT CASE
        WHEN bool_or(EXISTS (
          SELECT FROM reservation.processed_messages p
          WHERE p.handler = h.handler
            AND p.key = CASE jsonb_typeof(question->'processed')
                        WHEN 'string' THEN question->>'processed' ELSE (message).id::text END)) THEN true
        WHEN bool_or((message).time < h.dropped_until) THEN NULL
        ELSE true END
      FROM reservation.processed_handlers h
      WHERE h.consumer = is_remembered.consumer AND question->'types' ? h.type)
    WHEN question->'states' = 'true' THEN (
      SELECT CASE
        WHEN EXISTS (SELECT FROM reservation.states s WHERE s.message_id = (message).id) THEN true
        WHEN (message).global_position <= (
          SELECT (h.expired->>message_store.category((message).stream_name))::bigint
          FROM reservation.state_horizons h
          WHERE h.stream_name = is_remembered.consumer || ':state' || substr(
            is_remembered.entity_stream, length(is_remembered.consumer) + 1)) THEN NULL
        ELSE true END)
    ELSE true END
$$;

-- The answer itself, with the rights of the caller, who must be able to read the log.
CREATE OR REPLACE FUNCTION reservation.found_outcome(question jsonb) RETURNS TABLE (
  state text, reason text, corrected boolean, contents text[], notices boolean,
  id varchar, stream_name varchar, type varchar, "position" bigint, global_position bigint,
  data varchar, metadata varchar, "time" timestamp
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
  asked text := question->>'category';
  consumer text := left(asked, -length(':command'));
  entity_stream text := question->>'entityStream';
  is_reserved boolean := jsonb_typeof(question->'keyStreams') = 'array';
  initiates boolean := coalesce(question->'initiates' = 'true', false);
  has_key boolean := is_reserved OR initiates OR jsonb_typeof(question->'processed') = 'string';
  stands boolean := false;  -- whether a message stands under the key, or needs none
  cause message_store.messages%ROWTYPE;
  cause_position bigint;
  cause_stream text;
  is_dealt_with boolean := false;
  letter record;
  event message_store.messages%ROWTYPE;
  first_position bigint;
  events message_store.messages[] := '{}';
  given text[];
BEGIN
  IF asked IS NULL OR asked <> consumer || ':command'
     OR (entity_stream IS NOT NULL AND message_store.category(entity_stream) <> consumer) THEN
    RAISE invalid_parameter_value USING
      MESSAGE = 'A question names the command category of a component, and a stream of its entities';
  END IF;
  notices := EXISTS (
    SELECT FROM pg_trigger t
    WHERE t.tgrelid = 'message_store.messages'::regclass AND t.tgname = 'reservation_notice'
      AND t.tgenabled IN ('O', 'A'));

  -- What stands under the key.
  IF is_reserved THEN
    SELECT c.* INTO cause FROM reservation.asked_copy(question, consumer) AS c;
    stands := FOUND;
  ELSIF initiates THEN
    SELECT m.* INTO event FROM message_store.messages m
    WHERE m.stream_name = entity_stream AND reservation.starts(m.type, m.data)
    ORDER BY m.position
    LIMIT 1;
    stands := FOUND;
    IF stands THEN
      cause_position := reservation.causation(event.metadata);
      cause_stream := event.metadata->>'causationMessageStreamName';
      IF message_store.category(cause_stream) IS DISTINCT FROM asked THEN
        -- Something else than a command of the category started the stream. Who has sent no such
        -- command must not learn that it exists.
        state := CASE WHEN EXISTS (SELECT FROM reservation.asked_open_command(question, consumer))
                      THEN 'conflict' ELSE 'unknown' END;
        RETURN NEXT;
        RETURN;
      END IF;
      SELECT m.* INTO cause FROM reservation.message_in(cause_position, cause_stream) AS m;
    END IF;
  ELSIF has_key THEN
    SELECT p.global_position INTO cause_position
    FROM reservation.processed_handlers h
    JOIN reservation.processed_messages p ON p.handler = h.handler
    WHERE h.consumer = consumer AND question->'types' ? h.type AND p.key = question->>'processed'
    ORDER BY p.global_position
    LIMIT 1;
    stands := FOUND;
    is_dealt_with := stands;
    SELECT m.* INTO cause FROM message_store.messages m
    WHERE m.global_position = cause_position AND message_store.category(m.stream_name) = asked
    LIMIT 1;
  END IF;

  IF NOT stands THEN
    SELECT c.* INTO cause FROM reservation.asked_command(question, consumer, has_key) AS c;
    stands := FOUND AND NOT (is_reserved OR initiates);
  END IF;
  IF cause.id IS NOT NULL THEN
    cause_position := cause.global_position;
    cause_stream := cause.stream_name;
  END IF;
  IF entity_stream IS NULL AND cause.data->>(question->>'idField') IS NOT NULL THEN
    entity_stream := consumer || '-' || (cause.data->>(question->>'idField'));
  END IF;

  -- Its events, which are together.
  IF stands AND cause_position IS NOT NULL THEN
    first_position := reservation.first_event(entity_stream, cause_position, cause_stream, asked);
  ELSIF cause_position IS NULL AND question->>'firstEvent' IS NOT NULL AND NOT (is_reserved OR initiates)
  THEN
    SELECT m.position, reservation.causation(m.metadata), m.metadata->>'causationMessageStreamName'
    INTO first_position, cause_position, cause_stream
    FROM message_store.messages m
    WHERE m.id = (question->>'firstEvent')::uuid AND m.stream_name = entity_stream
      AND message_store.category(m.metadata->>'causationMessageStreamName') = asked;
  ELSIF is_reserved AND entity_stream IS NOT NULL AND (
    cause_position IS NULL
    OR cause_position <= reservation.dealt_with_up_to(consumer, asked, cause_stream)
  ) THEN
    first_position := reservation.event_of_removed(entity_stream, question->'keyStreams', consumer);
    IF first_position IS NOT NULL THEN
      SELECT reservation.causation(m.metadata), m.metadata->>'causationMessageStreamName'
      INTO cause_position, cause_stream
      FROM message_store.messages m
      WHERE m.stream_name = entity_stream AND m.position = first_position;
    END IF;
  END IF;
  IF first_position IS NOT NULL THEN
    FOR event IN
      SELECT m.* FROM message_store.messages m
      WHERE m.stream_name = entity_stream AND m.position >= first_position
      ORDER BY m.position
    LOOP
      EXIT WHEN reservation.causation(event.metadata) IS DISTINCT FROM cause_position
        OR cause_stream IS NOT NULL
           AND event.metadata->>'causationMessageStreamName' IS DISTINCT FROM cause_stream;
      events := events || event;
    END LOOP;
  END IF;

  -- What that means.
  IF cardinality(events) > 0 THEN
    event := events[1];
    IF event.type = 'PseudoEvent' AND event.data ? 'rejected' THEN
      state := 'rejected';
      reason := event.data->>'reason';
    ELSE
      state := 'handled';
    END IF;
  ELSIF cause_position IS NULL THEN
    state := 'unknown';
  ELSE
    SELECT d.state, d.reason, d.error INTO letter
    FROM reservation.dead_letters d
    WHERE d.consumer = consumer AND d.category = message_store.category(cause.stream_name)
      AND d.global_position = cause.global_position AND d.message_id = cause.id;
    IF letter.state IN ('dead', 'discarded') THEN
      state := CASE WHEN letter.reason IN ('conflict', 'expired') THEN letter.reason ELSE 'dead' END;
      reason := letter.error;
    ELSIF letter.state <> 'handled' OR NOT is_dealt_with AND cause.global_position
          > reservation.dealt_with_up_to(
              consumer, message_store.category(cause.stream_name), cause.stream_name) THEN
      state := 'pending';
    ELSIF stands AND (
      is_dealt_with OR reservation.is_remembered(question, consumer, entity_stream, cause)) THEN
      state := 'handled';
    ELSE
      state := 'expired';
    END IF;
  END IF;

  IF cause.id IS NOT NULL THEN
    given := ARRAY(SELECT k::text FROM reservation.corrected_contents(
      cause.id, cause.global_position, CASE WHEN is_reserved AND stands THEN cause.metadata END) AS k);
    IF stands AND (is_reserved OR initiates) THEN
      contents := given;
    END IF;
    corrected := cardinality(given) > 0;
    id := cause.id;
    stream_name := cause.stream_name;
    type := reservation.readable_type(cause.type);
    position := cause.position;
    global_position := cause.global_position;
    data := reservation.readable_text(cause.data);
    metadata := reservation.readable_text(cause.metadata);
    time := reservation.readable_time(cause.time);
  END IF;
  RETURN NEXT;
  RETURN QUERY
    SELECT NULL::text, NULL::text, NULL::boolean, NULL::text[], NULL::boolean,
           e.id::varchar, e.stream_name::varchar, reservation.readable_type(e.type),
           e.position, e.global_position,
           reservation.readable_text(e.data), reservation.readable_text(e.metadata),
           reservation.readable_time(e.time)
    FROM unnest(events) AS e;
END
$$;

-- The same for a role that may not read the log, with the rights of the owner.
CREATE OR REPLACE FUNCTION reservation.ask(question jsonb) RETURNS TABLE (
  state text, reason text, corrected boolean, contents text[], notices boolean,
  id varchar, stream_name varchar, type varchar, "position" bigint, global_position bigint,
  data varchar, metadata varchar, "time" timestamp
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM reservation.check_may_ask(question->>'category');
  RETURN QUERY SELECT o.* FROM reservation.found_outcome(question) AS o;
END
$$;

CREATE OR REPLACE FUNCTION reservation.outcome(question jsonb) RETURNS TABLE (
  state text, reason text, corrected boolean, contents text[], notices boolean,
  id varchar, stream_name varchar, type varchar, "position" bigint, global_position bigint,
  data varchar, metadata varchar, "time" timestamp
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF reservation.may_read() THEN
    RETURN QUERY SELECT o.* FROM reservation.found_outcome(question) AS o;
  ELSE
    RETURN QUERY SELECT o.* FROM reservation.ask(question) AS o;
  END IF;
  PERFORM reservation.flush_with_commit();  -- the answer may rest on what is not flushed yet
END
$$;
