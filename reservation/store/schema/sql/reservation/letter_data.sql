-- The data that the message of a dead letter is handled with in the place of its own. The letter keeps it, and the
-- log keeps the message as it was sent. A later correction replaces it; who gave each, when and why is in
-- reservation.letter_decisions.

-- What a message was sent with and is handled with instead, and of a reserved copy what its command was; none if
-- neither was corrected. `metadata` is that of a copy; NULL for a message that is none. Letters of other components,
-- which subscribe to the category, do not count.
CREATE OR REPLACE FUNCTION reservation.corrected_contents(
  message_id uuid, global_position bigint, metadata jsonb
) RETURNS SETOF jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT content.data
  FROM (
    SELECT d.consumer, d.global_position, d.message_id, d.data FROM reservation.dead_letters d
    WHERE d.global_position = $2 AND d.message_id = $1 AND d.data IS NOT NULL
    UNION ALL
    SELECT d.consumer, d.global_position, d.message_id, d.data FROM reservation.dead_letters d
    WHERE d.global_position = reservation.causation($3) AND d.data IS NOT NULL
  ) AS d
  CROSS JOIN LATERAL (
    SELECT m.stream_name, m.data FROM message_store.messages m
    WHERE m.global_position = d.global_position AND m.id = d.message_id
    LIMIT 1
  ) AS sent
  CROSS JOIN LATERAL (VALUES (sent.data), (d.data)) AS content(data)
  WHERE message_store.category(coalesce($3->>'causationMessageStreamName', sent.stream_name))
        = d.consumer || ':command'
$$;

-- Has a dead letter handled again with other data. Key and entity stay: what the message has of the fields that
-- make them, the data must have too. Runs with the rights of its owner, because consumers, which may write letters,
-- may not do this. `request` is as in reservation.letter_decisions.
CREATE OR REPLACE FUNCTION reservation.retry_with_data(
  consumer text, category text, global_position bigint, data jsonb, reason text,
  on_behalf_of text, request uuid
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  letter record;
  sent jsonb;
  differing text;
  decision_number bigint;
BEGIN
  -- Consumers that handle letters hold it too.
  PERFORM pg_advisory_xact_lock(hashtextextended('reservation.dead_letters', 0));
  IF jsonb_typeof(retry_with_data.data) IS DISTINCT FROM 'object'
     OR coalesce(btrim(retry_with_data.reason), '') = '' THEN
    RAISE invalid_parameter_value USING
      MESSAGE = 'A letter is given a JSON object as its data, and a reason';
  END IF;
  IF reservation.is_longer(retry_with_data.data, 16777216) THEN  -- else consumers could not read it
    RAISE program_limit_exceeded USING MESSAGE = 'The data has more than 16777216 bytes of JSON';
  END IF;
  SELECT d.message_id, d.state, d.reason, d.key_fields INTO letter
  FROM reservation.dead_letters d
  WHERE (d.consumer, d.category, d.global_position)
        = (retry_with_data.consumer, retry_with_data.category, retry_with_data.global_position);
  IF NOT FOUND OR letter.state NOT IN ('dead', 'waiting') OR letter.reason = 'conflict' THEN
    RAISE object_not_in_prerequisite_state USING MESSAGE = format(
      'There is no dead letter of the consumer %s at global position %s that can be retried',
      retry_with_data.consumer, retry_with_data.global_position);
  END IF;
  SELECT m.data INTO sent
  FROM message_store.messages m
  WHERE m.global_position = retry_with_data.global_position AND m.id = letter.message_id;
  IF NOT FOUND THEN
    RAISE object_not_in_prerequisite_state USING MESSAGE = format(
      'The message at global position %s is no longer in the store', retry_with_data.global_position);
  END IF;
  SELECT string_agg(k.field, ', ' ORDER BY k.n) INTO differing
  FROM unnest(letter.key_fields) WITH ORDINALITY AS k(field, n)
  WHERE sent->>k.field <> coalesce(retry_with_data.data->>k.field, '');
  IF differing IS NOT NULL THEN
    RAISE object_not_in_prerequisite_state USING MESSAGE = format(
      'The data differs from the message at global position %s in %s, which make its key and its entity',
      retry_with_data.global_position, differing);
  END IF;

  -- What it wrote is stored with its state, and stands.
  IF EXISTS (
    SELECT FROM reservation.states s
    WHERE s.message_id = letter.message_id AND s.category = retry_with_data.category
      AND s.global_position = retry_with_data.global_position
  ) THEN
    RAISE object_not_in_prerequisite_state USING MESSAGE = format(
      'The message at global position %s was handled, and what it wrote stands. Retry its dead letter '
      'without data', retry_with_data.global_position);
  END IF;

  INSERT INTO reservation.letter_decisions AS h (
    consumer, category, global_position, message_id, decision, former_state, reason, on_behalf_of, request)
  VALUES (retry_with_data.consumer, retry_with_data.category, retry_with_data.global_position,
          letter.message_id, 'correct', letter.state, btrim(retry_with_data.reason),
          retry_with_data.on_behalf_of, retry_with_data.request)
  RETURNING h.number INTO decision_number;
  UPDATE reservation.dead_letters d
  SET data = retry_with_data.data, correction = decision_number, state = 'waiting', attempts = 0,
      next_attempt_at = clock_timestamp(), changed_at = clock_timestamp()
  WHERE (d.consumer, d.category, d.global_position)
        = (retry_with_data.consumer, retry_with_data.category, retry_with_data.global_position);
END
$$;

-- A letter for another message at its place, in a log that was replaced, has nothing of the former one.
CREATE OR REPLACE FUNCTION reservation.forget_data() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  NEW.data := NULL;
  NEW.correction := NULL;
  RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER forget_data
BEFORE UPDATE OF message_id ON reservation.dead_letters
FOR EACH ROW
WHEN (NEW.message_id <> OLD.message_id)
EXECUTE FUNCTION reservation.forget_data();
