-- What became of a command: the one question that a sender may ask. `question` is a JSON object:
--
--   category      the command category, such as account:command; the consumer is what is before the ":"
--   types         the types that messages of the command's class are stored under
--   keyStreams    of a reserved command the streams that its key may be reserved in, a former one first
--   initiates     true for a command that starts its entity's stream
--   entityStream  the stream of its entity; without it the entity is read from the stored command, in
--   idField       the field of its data that has the entity's id
--   sentTo        the stream that it was sent to
--   messageId     its id, and
--   firstEvent    the id that its first event would have, both if they are known
--   processed     of one that is remembered in a table the key, or true if that is its id
--   states        true for one whose states are kept
--   fields        the fields of its key, as texts, or
--   content       its data, by which it is found in that stream, without
--   volatile      the fields in which a reissue may differ
--
-- All that it is answered from is in the log, but for messages without an event: these are known by the
-- position of the consumer, and by what strategies keep.
--
-- Nothing is shown but the command that stands and the events of its entity that follow from it. A stream
-- that the question names is looked at only as far as what is there follows from the category asked about.
-- The caller's right to ask about that is checked in `ask`.

CREATE OR REPLACE FUNCTION reservation.may_read() RETURNS boolean
LANGUAGE sql STABLE
RETURN CASE WHEN has_schema_privilege('message_store', 'USAGE')
            THEN has_table_privilege('message_store.messages', 'SELECT') ELSE false END;

-- Who calls is found as in check_may_send, for the same reasons: whose session may read the log has no
-- need of `ask`, and is refused, so that no sender can leave code that reads with such rights.
CREATE OR REPLACE FUNCTION reservation.check_may_ask(category text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  caller name := coalesce(nullif(current_setting('role'), 'none'), session_user);
BEGIN
  IF has_table_privilege(caller, 'message_store.messages'::regclass, 'SELECT') THEN
    RAISE insufficient_privilege USING
      MESSAGE = format('The role %s may read without being a sender, and this question came from '
                       'another role', caller),
      HINT = 'Call the function outcome directly, as the role of the session.';
  END IF;
  IF NOT EXISTS (
    SELECT FROM reservation.sender_categories c
    WHERE c.category = check_may_ask.category AND pg_has_role(caller, c.role, 'USAGE')
  ) THEN
    RAISE insufficient_privilege USING
      MESSAGE = format('The role %s may not ask about the category %s, because it may not write to it',
                       caller, coalesce(category, 'NULL')),
      HINT = format('Let the owner of the store run `reservation store grants sender %s`, with '
                    '--category for each category that it may write to.', quote_ident(caller));
  END IF;
END
$$;

-- The global position up to which a consumer has dealt with the messages of a stream.
CREATE OR REPLACE FUNCTION reservation.dealt_with_up_to(
  consumer text, category text, stream_name text
) RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT coalesce((
    SELECT greatest(p.position, CASE WHEN g.carried IS NOT NULL THEN
             g.carried[1 + reservation.partition_of($3, cardinality(g.carried))] END)
    FROM reservation.groups g
    JOIN reservation.positions p
      ON p.consumer = g.consumer AND p.category = g.category
     AND p.partition = reservation.partition_of($3, g.partitions)
     AND p.generation >= reservation.newest_generation(
           g.consumer, g.category, reservation.partition_of($3, g.partitions))
    WHERE g.consumer = $1 AND g.category = $2), 0)
$$;

-- The position of the first message of a stream that was stored after a global position; NULL if there is
-- none. Both grow together, so it is found by halving, and a long stream is not read.
CREATE OR REPLACE FUNCTION reservation.first_after(stream_name text, after bigint) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_variable
DECLARE
  low bigint := 0;
  high bigint;
  middle bigint;
  here record;
BEGIN
  SELECT m.position, m.global_position INTO here
  FROM message_store.messages m
  WHERE m.stream_name = first_after.stream_name
  ORDER BY m.position DESC LIMIT 1;
  IF NOT FOUND OR here.global_position <= after THEN
    RETURN NULL;
  END IF;
  high := here.position;
  WHILE low < high LOOP
    middle := (low + high) / 2;
    SELECT m.position, m.global_position INTO here
    FROM message_store.messages m
    WHERE m.stream_name = first_after.stream_name AND m.position >= middle
    ORDER BY m.position LIMIT 1;  -- there may be gaps, where messages were moved to an archive
    IF here.global_position > after THEN
      high := middle;
    ELSE
      low := here.position + 1;
    END IF;
  END LOOP;
  RETURN high;
END
$$;

-- The message at a global position, if it is in this stream. The stream is compared afterwards: of a stream
-- that the planner takes for a short one it may read all messages instead.
CREATE OR REPLACE FUNCTION reservation.message_in(global_position bigint, stream_name text)
RETURNS SETOF message_store.messages
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET enable_bitmapscan = off
AS $$
  SELECT m.*
  FROM (SELECT * FROM message_store.messages n WHERE n.global_position = $1 OFFSET 0) AS m
  WHERE m.stream_name = $2
$$;

-- Whether a message is the command that is asked about.
CREATE OR REPLACE FUNCTION reservation.is_asked(question jsonb, type text, data jsonb) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT question->'types' ? type AND CASE
    WHEN jsonb_typeof(question->'content') = 'object' THEN
      reservation.content(data, ARRAY(SELECT jsonb_array_elements_text(question->'volatile')))
      = reservation.content(question->'content',
                            ARRAY(SELECT jsonb_array_elements_text(question->'volatile')))
    WHEN jsonb_typeof(question->'fields') = 'object' THEN NOT EXISTS (
      SELECT FROM jsonb_each_text(question->'fields') AS f
      WHERE data->>f.key IS DISTINCT FROM f.value)
    ELSE false END
$$;

-- The reserved copy that stands under the key, if it is one of a command of the category asked about.
-- It has that command's type and content, or has been corrected with it. Of a command that is in an
-- archive now, the category of the copy is one that the consumer reads.
CREATE OR REPLACE FUNCTION reservation.asked_copy(question jsonb, consumer text)
RETURNS SETOF message_store.messages
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
  SELECT copy.*
  FROM jsonb_array_elements_text(question->'keyStreams') WITH ORDINALITY AS k(name, n)
  CROSS JOIN LATERAL (
    SELECT m.* FROM message_store.messages m
    WHERE m.stream_name = k.name AND m.position = 0
    LIMIT 1
  ) AS copy
  LEFT JOIN LATERAL (
    SELECT m.* FROM reservation.message_in(
      reservation.causation(copy.metadata), copy.metadata->>'causationMessageStreamName') AS m
  ) AS command ON true
  WHERE message_store.category(copy.metadata->>'causationMessageStreamName') = question->>'category'
    AND CASE
      WHEN command.id IS NOT NULL THEN copy.type = command.type AND (
        copy.data IS NOT DISTINCT FROM command.data
        OR EXISTS (SELECT FROM reservation.corrections c
                   WHERE c.global_position = command.global_position AND c.message_id = command.id))
      ELSE EXISTS (SELECT FROM reservation.groups g
                   WHERE g.consumer = asked_copy.consumer
                     AND g.category = message_store.category(copy.stream_name))
    END
  ORDER BY k.n
  LIMIT 1
$$;

-- The command itself, as it was sent: by its id, or in its stream. Of one with a key, under which nothing
-- stands, first what is not read yet and the dead letters are looked at, and only then the rest of the
-- stream. One field is compared first, which costs a tenth of comparing them all.
CREATE OR REPLACE FUNCTION reservation.asked_command(question jsonb, consumer text, has_key boolean)
RETURNS SETOF message_store.messages
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_variable
DECLARE
  asked text := question->>'category';
  sent_to text := question->>'sentTo';
  unread bigint;  -- the position of the first message that is not read yet
  field text;
  wanted text;
BEGIN
  IF question->>'messageId' IS NOT NULL THEN
    RETURN QUERY
      SELECT m.* FROM message_store.messages m
      WHERE m.id = (question->>'messageId')::uuid AND message_store.category(m.stream_name) = asked;
    RETURN;
  END IF;
  IF sent_to IS NULL OR message_store.category(sent_to) <> asked THEN
    RETURN;
  END IF;
  IF jsonb_typeof(question->'fields') = 'object'
      AND jsonb_typeof(question->'content') IS DISTINCT FROM 'object' THEN
    SELECT f.key, f.value INTO field, wanted FROM jsonb_each_text(question->'fields') AS f LIMIT 1;
  END IF;
  IF has_key THEN
    unread := reservation.first_after(
      sent_to, reservation.dealt_with_up_to(consumer, asked, sent_to));
    RETURN QUERY
      SELECT m.* FROM message_store.messages m
      WHERE m.stream_name = sent_to AND m.position >= unread
        AND (field IS NULL OR m.data->>field IS NOT DISTINCT FROM wanted)
        AND reservation.is_asked(question, m.type, m.data)
      ORDER BY m.position
      LIMIT 1;
    IF FOUND THEN
      RETURN;
    END IF;
    RETURN QUERY
      SELECT m.*
      FROM (  -- by its stream, whatever the planner takes for fewer
        SELECT * FROM reservation.dead_letters l WHERE l.stream_name = sent_to OFFSET 0
      ) AS d
      CROSS JOIN LATERAL (
        SELECT m.* FROM message_store.messages m
        WHERE m.global_position = d.global_position AND m.id = d.message_id
        LIMIT 1
      ) AS m
      WHERE d.consumer = asked_command.consumer AND d.category = asked
        AND d.state <> 'handled' AND reservation.is_asked(question, m.type, m.data)
      ORDER BY d.global_position DESC
      LIMIT 1;
    IF FOUND THEN
      RETURN;
    END IF;
  END IF;
  RETURN QUERY
    SELECT m.* FROM message_store.messages m
    WHERE m.stream_name = sent_to AND m.position < coalesce(unread, 9223372036854775807)
      AND (field IS NULL OR m.data->>field IS NOT DISTINCT FROM wanted)
      AND reservation.is_asked(question, m.type, m.data)
    ORDER BY m.position
    LIMIT 1;
END
$$;

-- Of an event that follows from a message: its position in the stream of the entity; NULL if there is
-- none. Where it is not known which stream the message was in, it was in the category asked about.
CREATE OR REPLACE FUNCTION reservation.first_event(
  entity_stream text, cause bigint, cause_stream text, asked text
) RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET enable_bitmapscan = off
AS $$
  SELECT m.position FROM message_store.messages m
  WHERE m.stream_name = $1 AND m.position >= reservation.first_after($1, $2)
    AND reservation.causation(m.metadata) = $2
    AND CASE WHEN $3 IS NOT NULL THEN m.metadata->>'causationMessageStreamName' = $3
             ELSE message_store.category(m.metadata->>'causationMessageStreamName') = $4 END
  ORDER BY m.position
  LIMIT 1
$$;

-- Of a reservation that was removed with its stream: the position of the first event that follows from it.
CREATE OR REPLACE FUNCTION reservation.event_of_removed(
  entity_stream text, key_streams jsonb, consumer text
) RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET enable_bitmapscan = off
AS $$
  SELECT m.position FROM message_store.messages m
  WHERE m.stream_name = $1
    AND m.metadata->>'causationMessageStreamName' IN (
      SELECT k.name FROM jsonb_array_elements_text($2) AS k(name)
      WHERE EXISTS (SELECT FROM reservation.groups g
                    WHERE g.consumer = $3 AND g.category = message_store.category(k.name))
        AND NOT EXISTS (SELECT FROM message_store.messages r WHERE r.stream_name = k.name))
  ORDER BY m.position
  LIMIT 1
$$;

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
  state text, reason text, contents text[], notices boolean,
  id varchar, stream_name varchar, type varchar, "position" bigint, global_position bigint,
  data varchar, metadata varchar, "time" timestamp
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
SET enable_bitmapscan = off
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
        state := 'conflict';  -- with something that no command of the category brought about
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
    -- A letter that waits for its next attempt is dead for processes that know no retries. The row is
    -- asked for the column, because a store may not have it yet.
    SELECT CASE WHEN to_jsonb(d)->>'next_attempt_at' IS NULL THEN d.state ELSE 'retry' END AS state,
           d.reason, d.error
    INTO letter
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
    IF stands AND (is_reserved OR initiates) THEN
      contents := reservation.corrected_contents(
        cause.id, cause.global_position, CASE WHEN is_reserved THEN cause.metadata END);
    END IF;
    id := cause.id;
    stream_name := cause.stream_name;
    type := cause.type;
    position := cause.position;
    global_position := cause.global_position;
    data := cause.data;
    metadata := cause.metadata;
    time := cause.time;
  END IF;
  RETURN NEXT;
  RETURN QUERY
    SELECT NULL::text, NULL::text, NULL::text[], NULL::boolean,
           e.id::varchar, e.stream_name::varchar, e.type::varchar, e.position, e.global_position,
           e.data::varchar, e.metadata::varchar, e.time
    FROM unnest(events) AS e;
END
$$;

-- The same for a role that may not read the log, with the rights of the owner.
CREATE OR REPLACE FUNCTION reservation.ask(question jsonb) RETURNS TABLE (
  state text, reason text, contents text[], notices boolean,
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
  state text, reason text, contents text[], notices boolean,
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
