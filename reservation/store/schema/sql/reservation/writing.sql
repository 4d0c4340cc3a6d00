-- Writing in sets: a constant number of statements whatever the size of the batch, under the same
-- category locks that message_store.write_message takes.
--
-- Plans are made once a session and kept, possibly from when the log was empty, and must do for any
-- size of it: every row of the batch looks up its stream, or its id, in an index of the log.
--
-- A caller that may not insert into the log can be a sender, for which send_messages writes.
--
-- Triggers on the log find the search_path as the writer has it. So no function that inserts sets it, nor do those
-- that call it: they name all in full, operators too, and leave what needs more to functions that set it.
--
-- The time of a message is when its row is written. That of one which other clients of Message DB write is the
-- default of the column: when their transaction began.

CREATE OR REPLACE FUNCTION reservation.lock_categories(stream_names text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  -- One sorted order for everybody, so that two batches cannot wait for each other.
  PERFORM reservation.lock_category(hash)
  FROM (
    SELECT DISTINCT message_store.hash_64(category) AS hash
    FROM (
      -- As the function category does it, which costs more for each name.
      SELECT DISTINCT split_part(s, '-', 1) COLLATE "C" AS category
      FROM unnest(stream_names) AS s
    ) AS categories
    ORDER BY 1
  ) AS hashes;
END
$$;

-- Returns the position of each message in its stream, and its global position, in the order given. The same id
-- again is the same write again, provided that it says the same.
CREATE OR REPLACE FUNCTION reservation.write_messages(
  ids uuid[],
  stream_names text[],
  types text[],
  data jsonb[],
  metadata jsonb[],
  expected_versions bigint[],
  OUT positions bigint[],
  OUT global_positions bigint[]
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  written pg_catalog.record;
BEGIN
  IF NOT reservation.may_insert() THEN
    written := reservation.send_messages(
      ids, stream_names, types, data, metadata, expected_versions);
  ELSE
    positions := reservation.next_positions(ids, stream_names, expected_versions);
    IF positions IS NOT NULL THEN
      -- They get their global positions in the order given.
      WITH inserted AS (
        INSERT INTO message_store.messages AS m (id, stream_name, position, type, data, metadata, time)
        SELECT pg_catalog.unnest(ids), pg_catalog.unnest(stream_names), pg_catalog.unnest(positions),
               pg_catalog.unnest(types), pg_catalog.unnest(data), pg_catalog.unnest(metadata),
               pg_catalog.timezone('utc', pg_catalog.clock_timestamp())
        RETURNING m.global_position
      )
      SELECT pg_catalog.array_agg(i.global_position ORDER BY i.global_position)
      INTO global_positions
      FROM inserted i;
      RETURN;
    END IF;
    written := reservation.write_messages_again(
      ids, stream_names, types, data, metadata, expected_versions);
  END IF;
  positions := written.positions;
  global_positions := written.global_positions;
END
$$;

-- Takes the locks of the categories, and returns the position that each message will have in its stream; NULL if
-- any of them is stored already.
CREATE OR REPLACE FUNCTION reservation.next_positions(
  ids uuid[], stream_names text[], expected_versions bigint[]
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
  positions bigint[];
  wrong record;
  version bigint;
BEGIN
  PERFORM reservation.lock_categories(stream_names);

  IF EXISTS (SELECT FROM message_store.messages m WHERE m.id = ANY (ids)) THEN
    RETURN NULL;
  END IF;

  -- To find the last message of a stream, the server looks at all its entries in the last page of the index.
  -- So the search ends at the expected version. If the stream is not as long as that, nothing is found, and the
  -- version is wrong.
  --
  -- Here and in write_messages not FROM unnest(...), which stores what it returns before the first row is read.
  SELECT array_agg(coalesce((SELECT m.position FROM message_store.messages m
                             WHERE m.stream_name = i.stream_name
                               AND m.position >= coalesce(i.expected_version, 0)
                             ORDER BY m.position DESC LIMIT 1), -1) + i.nth
                   ORDER BY i.n)
  INTO positions
  FROM (
    SELECT s.n, s.stream_name, row_number() OVER in_order AS nth,
           first_value(s.expected_version) OVER in_order AS expected_version
    FROM (
      SELECT generate_subscripts(stream_names, 1) AS n, unnest(stream_names) AS stream_name,
             unnest(expected_versions) AS expected_version
    ) AS s
    WINDOW in_order AS (PARTITION BY s.stream_name COLLATE "C" ORDER BY s.n)
  ) AS i;

  IF expected_versions IS NOT NULL THEN
    SELECT i.stream_name, i.expected_version, i.n::integer INTO wrong
    FROM unnest(stream_names, expected_versions, positions)
         WITH ORDINALITY AS i(stream_name, expected_version, "position", n)
    WHERE i.expected_version <> i.position - 1
    ORDER BY i.n
    LIMIT 1;
    IF FOUND THEN
      version := coalesce((SELECT m.position FROM message_store.messages m
                           WHERE m.stream_name = wrong.stream_name
                           ORDER BY m.position DESC LIMIT 1), -1)
        + cardinality(array_positions(stream_names[:wrong.n - 1], wrong.stream_name));
      PERFORM reservation.flush_now();
      RAISE EXCEPTION 'Wrong expected version: % (Stream: %, Stream Version: %)',
        wrong.expected_version, wrong.stream_name, version
        USING CONSTRAINT = 'expected_version';
    END IF;
  END IF;

  RETURN positions;
END
$$;

-- The writing of a batch of which a part is stored already: that part must say the same, and only the
-- rest is written.
CREATE OR REPLACE FUNCTION reservation.write_messages_again(
  ids uuid[],
  stream_names text[],
  types text[],
  data jsonb[],
  metadata jsonb[],
  expected_versions bigint[],
  OUT positions bigint[],
  OUT global_positions bigint[]
)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_variable
DECLARE
  stored pg_catalog.record;
  rest bigint[];
  written pg_catalog.record;
BEGIN
  stored := reservation.stored_positions(ids, stream_names, types, data, metadata);
  positions := stored.positions;
  global_positions := stored.global_positions;
  rest := stored.rest;

  IF rest IS NULL THEN
    PERFORM reservation.flush_with_commit();
  ELSE
    written := reservation.write_messages(
      ARRAY(SELECT ids[n] FROM pg_catalog.unnest(rest) AS n),
      ARRAY(SELECT stream_names[n] FROM pg_catalog.unnest(rest) AS n),
      ARRAY(SELECT types[n] FROM pg_catalog.unnest(rest) AS n),
      ARRAY(SELECT data[n] FROM pg_catalog.unnest(rest) AS n),
      ARRAY(SELECT metadata[n] FROM pg_catalog.unnest(rest) AS n),
      ARRAY(SELECT expected_versions[n] FROM pg_catalog.unnest(rest) AS n)
    );
    FOR n IN 1 .. pg_catalog.cardinality(rest) LOOP
      positions[rest[n]] := written.positions[n];
      global_positions[rest[n]] := written.global_positions[n];
    END LOOP;
  END IF;
END
$$;

-- The positions of the messages that are stored already, and which of the messages are not. Those that are must
-- say the same.
CREATE OR REPLACE FUNCTION reservation.stored_positions(
  ids uuid[],
  stream_names text[],
  types text[],
  data jsonb[],
  metadata jsonb[],
  OUT positions bigint[],
  OUT global_positions bigint[],
  OUT rest bigint[]
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
  wrong record;
BEGIN
  SELECT i.id, m.stream_name INTO wrong
  FROM unnest(ids, stream_names, types, data, metadata)
       AS i(id, stream_name, type, data, metadata)
  JOIN message_store.messages m ON m.id = i.id
  WHERE (m.stream_name, m.type, m.data, reservation.untraced(m.metadata))
        IS DISTINCT FROM (i.stream_name, i.type, i.data, reservation.untraced(i.metadata))
  LIMIT 1;
  IF FOUND THEN
    PERFORM reservation.raise_id_conflict(wrong.id, wrong.stream_name);
  END IF;

  SELECT array_agg(m.position ORDER BY i.n), array_agg(m.global_position ORDER BY i.n),
         array_agg(i.n ORDER BY i.n) FILTER (WHERE m.id IS NULL)
  INTO positions, global_positions, rest
  FROM unnest(ids) WITH ORDINALITY AS i(id, n)
  LEFT JOIN message_store.messages m ON m.id = i.id;
END
$$;

-- One message: what write_messages does, without the sets.
CREATE OR REPLACE FUNCTION reservation.write_message(
  id uuid,
  stream_name text,
  type text,
  data jsonb,
  metadata jsonb,
  expected_version bigint,
  OUT "position" bigint,
  OUT global_position bigint
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  next_ pg_catalog.record;
BEGIN
  IF NOT reservation.may_insert() THEN
    next_ := reservation.send_messages(
      ARRAY[write_message.id], ARRAY[write_message.stream_name], ARRAY[write_message.type],
      ARRAY[write_message.data], ARRAY[write_message.metadata],
      ARRAY[write_message.expected_version]);
    "position" := next_.positions[1];
    global_position := next_.global_positions[1];
    RETURN;
  END IF;
  next_ := reservation.next_position(
    write_message.id, write_message.stream_name, write_message.type, write_message.data,
    write_message.metadata, write_message.expected_version);
  "position" := next_.position;
  global_position := next_.global_position;
  IF global_position IS NULL THEN
    INSERT INTO message_store.messages AS m (id, stream_name, position, type, data, metadata, time)
    VALUES (write_message.id, write_message.stream_name, next_.position, write_message.type,
            write_message.data, write_message.metadata,
            pg_catalog.timezone('utc', pg_catalog.clock_timestamp()))
    RETURNING m.global_position INTO global_position;
  END IF;
END
$$;

-- Takes the lock of the category, and returns the position that a message will have in its stream, or has if it
-- is stored already; then with its global position, which is else NULL.
CREATE OR REPLACE FUNCTION reservation.next_position(
  id uuid,
  stream_name text,
  type text,
  data jsonb,
  metadata jsonb,
  expected_version bigint,
  OUT "position" bigint,
  OUT global_position bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  stored record;
  version bigint;
BEGIN
  PERFORM reservation.lock_category(
    message_store.hash_64(message_store.category(next_position.stream_name)));

  SELECT m.position, m.global_position, m.stream_name,
         (m.stream_name, m.type, m.data, reservation.untraced(m.metadata)) IS NOT DISTINCT FROM
         (next_position.stream_name, next_position.type, next_position.data,
          reservation.untraced(next_position.metadata)) AS says_the_same
  INTO stored
  FROM message_store.messages m
  WHERE m.id = next_position.id;
  IF FOUND THEN
    IF NOT stored.says_the_same THEN
      PERFORM reservation.raise_id_conflict(next_position.id, stored.stream_name);
    END IF;
    PERFORM reservation.flush_with_commit();
    "position" := stored.position;
    global_position := stored.global_position;
    RETURN;
  END IF;

  SELECT m.position INTO version
  FROM message_store.messages m
  WHERE m.stream_name = next_position.stream_name
  ORDER BY m.position DESC
  LIMIT 1;
  version := coalesce(version, -1);
  IF next_position.expected_version <> version THEN
    PERFORM reservation.flush_now();
    RAISE EXCEPTION 'Wrong expected version: % (Stream: %, Stream Version: %)',
      next_position.expected_version, next_position.stream_name, version
      USING CONSTRAINT = 'expected_version';
  END IF;

  "position" := version + 1;
END
$$;

-- Writes each message as if it were written alone, in the order given. Returns the positions of each,
-- NULL for one that is refused because of what it says; written alone, it gets the error.
-- The set is tried first. Only where that is refused does each message get a subtransaction of its own.
CREATE OR REPLACE FUNCTION reservation.write_each(
  ids uuid[],
  stream_names text[],
  types text[],
  data jsonb[],
  metadata jsonb[],
  expected_versions bigint[],
  OUT positions bigint[],
  OUT global_positions bigint[]
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  written pg_catalog.record;
  caller_flushes pg_catalog.text := coalesce(
    pg_catalog.current_setting('reservation.caller_flushes', true), '');
BEGIN
  -- A refusal within is no answer yet, so it waits for no flush: see flush_now.
  IF caller_flushes OPERATOR(pg_catalog.=) '' THEN
    PERFORM pg_catalog.set_config('reservation.caller_flushes', 'refusals', true);
  END IF;
  BEGIN
    written := reservation.write_messages(
      ids, stream_names, types, data, metadata, expected_versions);
    positions := written.positions;
    global_positions := written.global_positions;
    PERFORM pg_catalog.set_config('reservation.caller_flushes', caller_flushes, true);
    RETURN;
  EXCEPTION
    WHEN raise_exception OR integrity_constraint_violation OR data_exception
      OR program_limit_exceeded OR feature_not_supported THEN NULL;
  END;
  FOR n IN 1 .. pg_catalog.cardinality(ids) LOOP
    BEGIN
      written := reservation.write_message(
        ids[n], stream_names[n], types[n], data[n], metadata[n], expected_versions[n]);
      positions[n] := written.position;
      global_positions[n] := written.global_position;
    EXCEPTION
      WHEN raise_exception OR integrity_constraint_violation OR data_exception
        OR program_limit_exceeded OR feature_not_supported THEN
        positions[n] := NULL;
        global_positions[n] := NULL;
    END;
  END LOOP;
  PERFORM pg_catalog.set_config('reservation.caller_flushes', caller_flushes, true);
END
$$;

-- Names the stream only to a caller that may read the log. A sender may not, and this runs with the rights
-- of the owner then: see check_may_send.
CREATE OR REPLACE FUNCTION reservation.raise_id_conflict(id uuid, stream_name text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  caller name := coalesce(nullif(current_setting('role'), 'none'), session_user);
BEGIN
  PERFORM reservation.flush_now();
  RAISE unique_violation USING
    MESSAGE = format('Message id %s is in use for another message', id)
      || CASE WHEN has_table_privilege(caller, 'message_store.messages'::regclass, 'SELECT')
              THEN ' in stream ' || stream_name ELSE '' END,
    CONSTRAINT = 'message_id', TABLE = 'messages', SCHEMA = 'message_store';
END
$$;

-- Fails with the SQLSTATE RV002 where a message is not at the position that is expected of it, because it was
-- written before. Of one that is NULL nothing is expected.
CREATE OR REPLACE FUNCTION reservation.check_positions(positions bigint[], expected bigint[]) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF positions <> expected AND EXISTS (
    SELECT FROM unnest(positions, expected) AS i(at, wanted) WHERE i.at <> i.wanted
  ) THEN
    RAISE EXCEPTION 'A message was written before' USING ERRCODE = 'RV002', SCHEMA = 'reservation';
  END IF;
END
$$;

-- Fails likewise where one of these messages is stored in its stream.
CREATE OR REPLACE FUNCTION reservation.check_unwritten(ids uuid[], stream_names text[]) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
BEGIN
  IF EXISTS (
    SELECT FROM unnest(ids, stream_names) AS i(id, stream_name)
    JOIN message_store.messages m ON m.id = i.id AND m.stream_name = i.stream_name
  ) THEN
    RAISE EXCEPTION 'A message was written before' USING ERRCODE = 'RV002', SCHEMA = 'reservation';
  END IF;
END
$$;

-- Fails with the SQLSTATE RV004 where fewer of the records of handled messages could be written than there are.
CREATE OR REPLACE FUNCTION reservation.check_recorded(recorded bigint, wanted bigint) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF recorded <> wanted THEN
    RAISE EXCEPTION 'Another transaction has handled some of the messages'
      USING ERRCODE = 'RV004', SCHEMA = 'reservation';
  END IF;
END
$$;
