-- Corrections: content with which a command that could not be handled is handled, in the place of its
-- own. A correction is a message in the category <consumer>:correction, in a stream that is named by
-- the command's global position, and a row of reservation.corrections. Nothing is updated or deleted:
-- the last correction counts.

-- The last correction of a message that a consumer reads; none if it has none.
CREATE OR REPLACE FUNCTION reservation.last_correction(
  consumer text, category text, global_position bigint, message_id uuid
) RETURNS TABLE (correction bigint, data jsonb)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET enable_bitmapscan = off
AS $$
  SELECT k.correction, m.data->'corrected'
  FROM reservation.corrections k
  JOIN message_store.messages m ON m.global_position = k.correction AND m.id = k.correction_id
  WHERE k.consumer = last_correction.consumer AND k.category = last_correction.category
    AND k.global_position = last_correction.global_position
    AND k.message_id = last_correction.message_id
  ORDER BY k.correction DESC
  LIMIT 1
$$;

-- Whether a command says what a message was corrected from or to. Called only for a command that says
-- something else than the message itself does.
CREATE OR REPLACE FUNCTION reservation.was_corrected(
  message_id uuid, global_position bigint, content jsonb, volatile_fields text[]
) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET enable_bitmapscan = off
AS $$
  SELECT coalesce((
    SELECT was_corrected.content IN (
             reservation.content(m.data->'former', was_corrected.volatile_fields),
             reservation.content(m.data->'corrected', was_corrected.volatile_fields))
    FROM reservation.corrections k
    JOIN message_store.messages m ON m.global_position = k.correction AND m.id = k.correction_id
    WHERE k.global_position = was_corrected.global_position
      AND k.message_id = was_corrected.message_id
    ORDER BY k.correction DESC
    LIMIT 1), false)
$$;

-- The same of a reserved copy: it, or the command that it is a copy of, may have been corrected.
CREATE OR REPLACE FUNCTION reservation.copy_was_corrected(
  message_id uuid, global_position bigint, metadata jsonb, content jsonb, volatile_fields text[]
) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET enable_bitmapscan = off
AS $$
  SELECT reservation.was_corrected(message_id, global_position, content, volatile_fields)
      OR coalesce((
           SELECT bool_or(reservation.was_corrected(
                    k.message_id, k.global_position, copy_was_corrected.content,
                    copy_was_corrected.volatile_fields))
           FROM reservation.corrections k
           WHERE k.global_position = reservation.causation(copy_was_corrected.metadata)), false)
$$;

-- What a message was corrected from and to; of a reserved copy too what its command was. Empty if
-- neither was corrected. `metadata` is that of a copy; NULL for a message that is none.
CREATE OR REPLACE FUNCTION reservation.corrected_contents(
  message_id uuid, global_position bigint, metadata jsonb
) RETURNS text[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET enable_bitmapscan = off
AS $$
  SELECT coalesce(array_agg(content.data), '{}')
  FROM (
    SELECT DISTINCT ON (k.global_position, k.message_id) k.correction, k.correction_id
    FROM (
      SELECT k.* FROM reservation.corrections k
      WHERE k.global_position = corrected_contents.global_position
        AND k.message_id = corrected_contents.message_id
      UNION ALL
      SELECT k.* FROM reservation.corrections k
      WHERE k.global_position = reservation.causation(corrected_contents.metadata)
    ) AS k
    ORDER BY k.global_position, k.message_id, k.correction DESC
  ) AS k
  JOIN message_store.messages m ON m.global_position = k.correction AND m.id = k.correction_id
  CROSS JOIN LATERAL (VALUES (m.data->>'former'), (m.data->>'corrected')) AS content(data)
$$;

-- Corrects a message that is a dead letter, and has it handled again. Runs with the rights of its owner:
-- who may call it need not be able to insert into the log. `not_compared` are the fields of the key and
-- the entity that only the correction has. Returns the global position of the correction, and how many the
-- message has now.
CREATE OR REPLACE FUNCTION reservation.correct(
  consumer text, category text, global_position bigint, corrected jsonb, reason text,
  not_compared text[]
) RETURNS TABLE (correction bigint, corrections bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  letter record;
  command record;
  correction_stream text := correct.consumer || ':correction-' || correct.global_position;
  new_id uuid := gen_random_uuid();
  new_position bigint;
  written bigint;
BEGIN
  -- Consumers that handle letters hold it too.
  PERFORM pg_advisory_xact_lock(hashtextextended('reservation.dead_letters', 0));
  SELECT d.message_id, d.state, d.reason INTO letter
  FROM reservation.dead_letters d
  WHERE (d.consumer, d.category, d.global_position)
        = (correct.consumer, correct.category, correct.global_position);
  IF NOT FOUND OR letter.state NOT IN ('dead', 'retry') OR letter.reason = 'conflict' THEN
    RAISE object_not_in_prerequisite_state USING MESSAGE = format(
      'There is no dead letter of the consumer %s at global position %s that can be corrected',
      correct.consumer, correct.global_position);
  END IF;
  IF jsonb_typeof(correct.corrected) IS DISTINCT FROM 'object'
     OR coalesce(btrim(correct.reason), '') = '' THEN
    RAISE invalid_parameter_value USING
      MESSAGE = 'A correction has a JSON object as its content, and a reason';
  END IF;
  SELECT m.stream_name, m.position, m.type, m.data, m.metadata INTO command
  FROM message_store.messages m
  WHERE m.global_position = correct.global_position AND m.id = letter.message_id;
  IF NOT FOUND THEN
    RAISE object_not_in_prerequisite_state USING MESSAGE = format(
      'The message at global position %s is no longer in the store', correct.global_position);
  END IF;

  -- Its outputs are stored with the state, and are published as they are.
  IF EXISTS (
    SELECT FROM reservation.states s
    WHERE s.message_id = letter.message_id AND s.category = correct.category
      AND s.global_position = correct.global_position
  ) THEN
    RAISE object_not_in_prerequisite_state USING MESSAGE = format(
      'The message at global position %s was handled: its state is stored, and only what it writes is '
      'missing. Retry its dead letter', correct.global_position);
  END IF;

  PERFORM reservation.lock_categories(ARRAY[correction_stream]);
  new_position := coalesce((
    SELECT m.position FROM message_store.messages m
    WHERE m.stream_name = correction_stream ORDER BY m.position DESC LIMIT 1), -1) + 1;
  INSERT INTO message_store.messages AS m (id, stream_name, position, type, data, metadata)
  VALUES (
    new_id, correction_stream, new_position, 'Corrected',
    jsonb_build_object(
      'consumer', correct.consumer, 'category', correct.category,
      'globalPosition', correct.global_position, 'messageId', letter.message_id,
      'streamName', command.stream_name, 'type', command.type,
      'former', command.data, 'corrected', correct.corrected,
      'notCompared', to_jsonb(correct.not_compared),
      'reason', correct.reason, 'sessionUser', session_user),
    reservation.followed_metadata(
      command.stream_name, command.position, correct.global_position, command.metadata))
  RETURNING m.global_position INTO written;
  INSERT INTO reservation.corrections
  VALUES (written, new_id, correct.consumer, correct.category, correct.global_position,
          letter.message_id);
  UPDATE reservation.dead_letters d
  SET state = 'retry', attempts = 0, changed_at = now()
  WHERE (d.consumer, d.category, d.global_position)
        = (correct.consumer, correct.category, correct.global_position);
  RETURN QUERY SELECT written, (
    SELECT count(*) FROM reservation.corrections k
    WHERE (k.consumer, k.category, k.global_position, k.message_id)
          = (correct.consumer, correct.category, correct.global_position, letter.message_id));
END
$$;

-- Nobody marks a letter as handled who has not handled it as it was corrected last: a process of a
-- version that knows no corrections fails instead.
CREATE OR REPLACE FUNCTION reservation.check_handled_as() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF EXISTS (
    SELECT FROM reservation.corrections k
    WHERE k.consumer = NEW.consumer AND k.category = NEW.category
      AND k.global_position = NEW.global_position AND k.message_id = NEW.message_id
      AND k.correction > coalesce(NEW.handled_as, 0)
  ) THEN
    RAISE object_not_in_prerequisite_state USING
      MESSAGE = format('The message at global position %s was corrected, and was to be handled '
                       'without its correction', NEW.global_position),
      HINT = 'Upgrade all processes of the consumer.';
  END IF;
  RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER check_handled_as
BEFORE UPDATE OF state ON reservation.dead_letters
FOR EACH ROW
WHEN (NEW.state = 'handled')
EXECUTE FUNCTION reservation.check_handled_as();
