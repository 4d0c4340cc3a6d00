-- Writing in sets: a constant number of statements whatever the size of the batch, under the same
-- category locks that message_store.write_message takes.
--
-- Plans are made once a session and kept, possibly from when the log was empty, and must do for any
-- size of it: every row of the batch looks up its stream, or its id, in an index of the log.
--
-- A caller that may not insert into the log can be a sender, for which send_messages writes.

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
      SELECT DISTINCT message_store.category(s) COLLATE "C" AS category
      FROM unnest(stream_names) AS s
    ) AS categories
    ORDER BY 1
  ) AS hashes;
END
$$;

-- Returns the position of each message in its stream, in the order given. The same id again is the
-- same write again, provided that it says the same.
CREATE OR REPLACE FUNCTION reservation.write_messages(
  ids uuid[],
  stream_names text[],
  types text[],
  data jsonb[],
  metadata jsonb[],
  expected_versions bigint[]
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
-- For the last message of a stream a page of the index is gone through, of which an index-only scan
-- copies every entry of the stream.
SET enable_indexonlyscan = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
  positions bigint[];
  wrong record;
  version bigint;
BEGIN
  IF NOT reservation.may_insert() THEN
    RETURN reservation.send_messages(
      ids, stream_names, types, data, metadata, expected_versions);
  END IF;
  PERFORM reservation.lock_categories(stream_names);

  IF EXISTS (SELECT FROM message_store.messages m WHERE m.id = ANY (ids)) THEN
    RETURN reservation.write_messages_again(
      ids, stream_names, types, data, metadata, expected_versions);
  END IF;

  -- To find the last message of a stream, the server looks at all its entries in the last page of the index.
  -- So the search ends at the expected version. If the stream is not as long as that, nothing is found, and the
  -- version is wrong.
  --
  -- Here and below not FROM unnest(...), which stores what it returns before the first row is read.
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

  INSERT INTO message_store.messages (id, stream_name, position, type, data, metadata)
  SELECT unnest(ids), unnest(stream_names), unnest(positions), unnest(types), unnest(data),
         unnest(metadata);

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
  expected_versions bigint[]
) RETURNS bigint[]
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
  positions bigint[];
  rest bigint[];
  written bigint[];
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

  SELECT array_agg(m.position ORDER BY i.n), array_agg(i.n ORDER BY i.n) FILTER (WHERE m.id IS NULL)
  INTO positions, rest
  FROM unnest(ids) WITH ORDINALITY AS i(id, n)
  LEFT JOIN message_store.messages m ON m.id = i.id;

  IF rest IS NULL THEN
    PERFORM reservation.flush_with_commit();
  ELSE
    written := reservation.write_messages(
      ARRAY(SELECT ids[n] FROM unnest(rest) AS n),
      ARRAY(SELECT stream_names[n] FROM unnest(rest) AS n),
      ARRAY(SELECT types[n] FROM unnest(rest) AS n),
      ARRAY(SELECT data[n] FROM unnest(rest) AS n),
      ARRAY(SELECT metadata[n] FROM unnest(rest) AS n),
      ARRAY(SELECT expected_versions[n] FROM unnest(rest) AS n)
    );
    FOR n IN 1 .. cardinality(rest) LOOP
      positions[rest[n]] := written[n];
    END LOOP;
  END IF;
  RETURN positions;
END
$$;

-- One message: what write_messages does, without the sets.
CREATE OR REPLACE FUNCTION reservation.write_message(
  id uuid,
  stream_name text,
  type text,
  data jsonb,
  metadata jsonb,
  expected_version bigint
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
  stored record;
  version bigint;
BEGIN
  IF NOT reservation.may_insert() THEN
    RETURN (reservation.send_messages(
      ARRAY[write_message.id], ARRAY[write_message.stream_name], ARRAY[write_message.type],
      ARRAY[write_message.data], ARRAY[write_message.metadata],
      ARRAY[write_message.expected_version]))[1];
  END IF;
  PERFORM reservation.lock_category(
    message_store.hash_64(message_store.category(write_message.stream_name)));

  SELECT m.position, m.stream_name,
         (m.stream_name, m.type, m.data, reservation.untraced(m.metadata)) IS NOT DISTINCT FROM
         (write_message.stream_name, write_message.type, write_message.data,
          reservation.untraced(write_message.metadata)) AS says_the_same
  INTO stored
  FROM message_store.messages m
  WHERE m.id = write_message.id;
  IF FOUND THEN
    IF NOT stored.says_the_same THEN
      PERFORM reservation.raise_id_conflict(write_message.id, stored.stream_name);
    END IF;
    PERFORM reservation.flush_with_commit();
    RETURN stored.position;
  END IF;

  SELECT m.position INTO version
  FROM message_store.messages m
  WHERE m.stream_name = write_message.stream_name
  ORDER BY m.position DESC
  LIMIT 1;
  version := coalesce(version, -1);
  IF write_message.expected_version <> version THEN
    PERFORM reservation.flush_now();
    RAISE EXCEPTION 'Wrong expected version: % (Stream: %, Stream Version: %)',
      write_message.expected_version, write_message.stream_name, version
      USING CONSTRAINT = 'expected_version';
  END IF;

  INSERT INTO message_store.messages (id, stream_name, position, type, data, metadata)
  VALUES (write_message.id, write_message.stream_name, version + 1, write_message.type,
          write_message.data, write_message.metadata);
  RETURN version + 1;
END
$$;

-- Writes each message as if it were written alone, in the order given. Returns the position of each in
-- its stream, NULL for one that is refused because of what it says; written alone, it gets the error.
-- The set is tried first. Only where that is refused does each message get a subtransaction of its own.
CREATE OR REPLACE FUNCTION reservation.write_each(
  ids uuid[],
  stream_names text[],
  types text[],
  data jsonb[],
  metadata jsonb[],
  expected_versions bigint[]
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  positions bigint[];
  caller_flushes text := coalesce(current_setting('reservation.caller_flushes', true), '');
BEGIN
  -- A refusal within is no answer yet, so it waits for no flush: see flush_now.
  IF caller_flushes = '' THEN
    PERFORM set_config('reservation.caller_flushes', 'refusals', true);
  END IF;
  BEGIN
    positions := reservation.write_messages(
      ids, stream_names, types, data, metadata, expected_versions);
    PERFORM set_config('reservation.caller_flushes', caller_flushes, true);
    RETURN positions;
  EXCEPTION
    WHEN raise_exception OR integrity_constraint_violation OR data_exception
      OR program_limit_exceeded OR feature_not_supported THEN NULL;
  END;
  FOR n IN 1 .. cardinality(ids) LOOP
    BEGIN
      positions[n] := reservation.write_message(
        ids[n], stream_names[n], types[n], data[n], metadata[n], expected_versions[n]);
    EXCEPTION
      WHEN raise_exception OR integrity_constraint_violation OR data_exception
        OR program_limit_exceeded OR feature_not_supported THEN positions[n] := NULL;
    END;
  END LOOP;
  PERFORM set_config('reservation.caller_flushes', caller_flushes, true);
  RETURN positions;
END
$$;

CREATE OR REPLACE FUNCTION reservation.raise_id_conflict(id uuid, stream_name text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM reservation.flush_now();
  RAISE unique_violation USING
    MESSAGE = format('Message id %s is in use for another message in stream %s', id, stream_name),
    CONSTRAINT = 'message_id', TABLE = 'messages', SCHEMA = 'message_store';
END
$$;
