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
--   ignoring      the fields in which a reissue may differ
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
    SELECT greatest(p.position, CASE WHEN g.former_positions IS NOT NULL THEN
             g.former_positions[1 + reservation.partition_of($3, cardinality(g.former_positions))] END)
    FROM reservation.groups g
    JOIN reservation.positions p
      ON p.consumer = g.consumer AND p.category = g.category
     AND p.partition = reservation.partition_of($3, g.partitions)
    WHERE g.consumer = $1 AND g.category = $2), 0)
$$;

-- The position of the first message of a stream that was stored after a global position; NULL if there is
-- none. Both grow together, so it is found by halving, and a long stream is not read.
CREATE OR REPLACE FUNCTION reservation.first_after(stream_name text, after bigint) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
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
      reservation.content(data, ARRAY(SELECT jsonb_array_elements_text(question->'ignoring')))
      = reservation.content(question->'content',
                            ARRAY(SELECT jsonb_array_elements_text(question->'ignoring')))
    WHEN jsonb_typeof(question->'fields') = 'object' THEN NOT EXISTS (
      SELECT FROM jsonb_each_text(question->'fields') AS f
      WHERE data->>f.key IS DISTINCT FROM f.value)
    ELSE false END
$$;

-- The reserved copy that stands under the key, if it is one of a command of the category asked about.
-- It has that command's type, and its content unless that was corrected. Of a command that is in an
-- archive now, the category of the copy is one that the consumer reads.
CREATE OR REPLACE FUNCTION reservation.asked_copy(question jsonb, consumer text)
RETURNS SETOF message_store.messages
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
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
        OR EXISTS (SELECT FROM reservation.corrected_contents(command.id, command.global_position, NULL)))
      ELSE EXISTS (SELECT FROM reservation.groups g
                   WHERE g.consumer = asked_copy.consumer
                     AND g.category = message_store.category(copy.stream_name))
    END
  ORDER BY k.n
  LIMIT 1
$$;

-- The command itself, as it was sent, if it is not read yet or is a dead letter; or by its id. Of what is not
-- read yet one field is compared first, as in asked_command.
CREATE OR REPLACE FUNCTION reservation.asked_open_command(question jsonb, consumer text)
RETURNS SETOF message_store.messages
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
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
    WHERE d.consumer = asked_open_command.consumer AND d.category = asked
      AND d.state <> 'handled' AND reservation.is_asked(question, m.type, m.data)
    ORDER BY d.global_position DESC
    LIMIT 1;
END
$$;

-- The command itself, as it was sent: by its id, or in its stream. Of one with a key, under which nothing
-- stands, first what is not read yet and the dead letters are looked at, and only then the rest of the
-- stream. One field is compared first, which costs a tenth of comparing them all.
CREATE OR REPLACE FUNCTION reservation.asked_command(question jsonb, consumer text, has_key boolean)
RETURNS SETOF message_store.messages
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
  sent_to text := question->>'sentTo';
  unread bigint;  -- the position of the first message that is not read yet, where that was looked at
  field text;
  wanted text;
BEGIN
  IF has_key OR question->>'messageId' IS NOT NULL THEN
    RETURN QUERY SELECT c.* FROM reservation.asked_open_command(question, consumer) AS c;
    IF FOUND OR question->>'messageId' IS NOT NULL THEN
      RETURN;
    END IF;
  END IF;
  IF sent_to IS NULL OR message_store.category(sent_to) <> question->>'category' THEN
    RETURN;
  END IF;
  IF jsonb_typeof(question->'fields') = 'object'
      AND jsonb_typeof(question->'content') IS DISTINCT FROM 'object' THEN
    SELECT f.key, f.value INTO field, wanted FROM jsonb_each_text(question->'fields') AS f LIMIT 1;
  END IF;
  IF has_key THEN
    unread := reservation.first_after(
      sent_to, reservation.dealt_with_up_to(consumer, question->>'category', sent_to));
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
