-- What the framework asks of the server in sets: a constant number of statements whatever the size
-- of the batch, under the same category locks that message_store.write_message takes. Of the
-- functions in message_store only category and hash_64 are called: those that Message DB itself
-- installed find its table by the search_path, and these functions pin theirs.
--
-- Their plans are made once a session and kept, possibly from when the log was empty, and must do
-- for any size of it: every join looks up the few rows of the batch in an index of the log.

CREATE OR REPLACE FUNCTION reservation.stream_version(stream_name text) RETURNS bigint
LANGUAGE sql STABLE
RETURN coalesce((SELECT max(m.position) FROM message_store.messages m
                 WHERE m.stream_name = stream_version.stream_name), -1);

-- Reading a batch in order. Where the planner knows nothing of a category yet, it would rather sort
-- all that is left of it for every batch than walk the index that has it in order; and where it
-- takes a category for a large one, it would walk the whole log. A range of category and position
-- together leaves it no index but the right one.

CREATE OR REPLACE FUNCTION reservation.read_stream(
  stream_name text, "position" bigint, batch_size bigint
) RETURNS SETOF message_store.message
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
  SELECT m.id::varchar, m.stream_name::varchar, m.type::varchar, m.position, m.global_position,
         m.data::varchar, m.metadata::varchar, m.time
  FROM message_store.messages m
  WHERE m.stream_name = read_stream.stream_name AND m.position >= read_stream.position
  ORDER BY m.position
  LIMIT read_stream.batch_size
$$;

CREATE OR REPLACE FUNCTION reservation.read_category(
  category text, "position" bigint, batch_size bigint
) RETURNS SETOF message_store.message
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
  SELECT m.id::varchar, m.stream_name::varchar, m.type::varchar, m.position, m.global_position,
         m.data::varchar, m.metadata::varchar, m.time
  FROM message_store.messages m
  WHERE (message_store.category(m.stream_name), m.global_position)
        BETWEEN (read_category.category, read_category.position)
            AND (read_category.category, 9223372036854775807)
  ORDER BY message_store.category(m.stream_name), m.global_position
  LIMIT read_category.batch_size
$$;

-- Reading many streams, each from a position of its own to its end.
CREATE OR REPLACE FUNCTION reservation.read_streams(
  stream_names text[], positions bigint[]
) RETURNS SETOF message_store.message
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
AS $$
BEGIN
  RETURN QUERY
    SELECT m.id::varchar, m.stream_name::varchar, m.type::varchar, m.position, m.global_position,
           m.data::varchar, m.metadata::varchar, m.time
    FROM unnest(stream_names, positions) WITH ORDINALITY AS s(stream_name, "position", n)
    JOIN message_store.messages m
      ON m.stream_name = s.stream_name AND m.position >= s.position
    ORDER BY s.n, m.position;
END
$$;

CREATE OR REPLACE FUNCTION reservation.last_message(
  stream_name text, type text
) RETURNS SETOF message_store.message
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
  SELECT m.id::varchar, m.stream_name::varchar, m.type::varchar, m.position, m.global_position,
         m.data::varchar, m.metadata::varchar, m.time
  FROM message_store.messages m
  WHERE m.stream_name = last_message.stream_name
    AND (last_message.type IS NULL OR m.type = last_message.type)
  ORDER BY m.position DESC
  LIMIT 1
$$;

CREATE OR REPLACE FUNCTION reservation.lock_categories(stream_names text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  -- One sorted order for everybody, so that two batches can not wait for each other.
  PERFORM pg_advisory_xact_lock(hash)
  FROM (
    SELECT DISTINCT message_store.hash_64(message_store.category(s)) AS hash
    FROM unnest(stream_names) AS s
    ORDER BY 1
  ) AS categories;
END
$$;

CREATE OR REPLACE FUNCTION reservation.write_messages(
  ids uuid[],
  stream_names text[],
  types text[],
  data text[],
  metadata text[],
  expected_versions bigint[]
) RETURNS TABLE (ordinal bigint, "position" bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
AS $$
#variable_conflict use_column
DECLARE
  wrong record;
BEGIN
  PERFORM reservation.lock_categories(stream_names);

  -- The same id again is the same write again, provided that it says the same.
  SELECT i.id, m.stream_name INTO wrong
  FROM unnest(ids, stream_names, types, write_messages.data, write_messages.metadata)
       AS i(id, stream_name, type, data, metadata)
  JOIN message_store.messages m ON m.id = i.id
  WHERE (m.stream_name, m.type, m.data, m.metadata)
        IS DISTINCT FROM (i.stream_name, i.type, i.data::jsonb, i.metadata::jsonb)
  LIMIT 1;
  IF FOUND THEN
    RAISE unique_violation USING
      MESSAGE = format('Message id %s is in use for another message in stream %s',
                       wrong.id, wrong.stream_name),
      CONSTRAINT = 'messages_id', TABLE = 'messages', SCHEMA = 'message_store';
  END IF;

  IF array_remove(expected_versions, NULL) <> '{}' THEN
    SELECT i.stream_name, i.expected_version, i.version INTO wrong
    FROM (
      SELECT n, i.stream_name, i.expected_version,
             reservation.stream_version(i.stream_name)
               + row_number() OVER (PARTITION BY i.stream_name ORDER BY n) - 1 AS version
      FROM unnest(ids, stream_names, expected_versions)
           WITH ORDINALITY AS i(id, stream_name, expected_version, n)
      WHERE NOT EXISTS (SELECT FROM message_store.messages m WHERE m.id = i.id)
    ) AS i
    WHERE i.expected_version <> i.version
    ORDER BY n
    LIMIT 1;
    IF FOUND THEN
      RAISE EXCEPTION 'Wrong expected version: % (Stream: %, Stream Version: %)',
        wrong.expected_version, wrong.stream_name, wrong.version
        USING CONSTRAINT = 'expected_version';
    END IF;
  END IF;

  RETURN QUERY
  WITH input AS MATERIALIZED (
    SELECT i.*, stored.position AS stored_position
    FROM unnest(ids, stream_names, types, write_messages.data, write_messages.metadata)
         WITH ORDINALITY AS i(id, stream_name, type, data, metadata, n)
    LEFT JOIN message_store.messages stored ON stored.id = i.id
  ), placed AS MATERIALIZED (
    SELECT i.*, coalesce(
             i.stored_position,
             reservation.stream_version(i.stream_name) + row_number() OVER (
               PARTITION BY i.stream_name, i.stored_position IS NULL ORDER BY i.n)
           ) AS position
    FROM input i
  ), written AS (
    INSERT INTO message_store.messages (id, stream_name, position, type, data, metadata)
    SELECT p.id, p.stream_name, p.position, p.type, p.data::jsonb, p.metadata::jsonb
    FROM placed p
    WHERE p.stored_position IS NULL
    ORDER BY p.n
  )
  SELECT p.n, p.position FROM placed p ORDER BY p.n;
END
$$;

CREATE OR REPLACE FUNCTION reservation.followed_metadata(
  stream_name text, "position" bigint, global_position bigint, metadata jsonb
) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN jsonb_build_object(
  'causationMessageStreamName', stream_name,
  'causationMessagePosition', "position",
  'causationMessageGlobalPosition', global_position
) || CASE WHEN jsonb_typeof(metadata) = 'object' THEN coalesce((
  SELECT jsonb_object_agg(kept.key, kept.value)
  FROM jsonb_each(metadata) AS kept(key, value)
  WHERE (kept.key IN ('correlationStreamName', 'replyStreamName')
         AND jsonb_typeof(kept.value) = 'string')
     OR (kept.key = 'properties'
         AND jsonb_typeof(kept.value) = 'object' AND kept.value <> '{}')), '{}') ELSE '{}' END;

-- The global position of the message that another follows; NULL if its metadata names none.
CREATE OR REPLACE FUNCTION reservation.causation(metadata jsonb) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN metadata->>'causationMessageGlobalPosition' ~ '^[0-9]{1,18}$'
            THEN (metadata->>'causationMessageGlobalPosition')::bigint END;

CREATE OR REPLACE FUNCTION reservation.content(data jsonb, volatile_fields text[]) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN jsonb_typeof(data) = 'object' THEN data - volatile_fields ELSE data END;

CREATE OR REPLACE FUNCTION reservation.volatile_fields(volatile jsonb, type text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ARRAY(SELECT jsonb_array_elements_text(coalesce(volatile->type, '[]')));

-- Copies each command to the stream that its idempotence key names, if that stream does not exist
-- yet. The payload never leaves the server. `volatile` names, by message type, the fields in which
-- a reissue may differ from the first issue.
CREATE OR REPLACE FUNCTION reservation.reserve(
  commands bigint[], stream_names text[], volatile jsonb
) RETURNS TABLE (ordinal bigint, outcome text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
AS $$
#variable_conflict use_column
BEGIN
  PERFORM reservation.lock_categories(stream_names);

  RETURN QUERY
  WITH input AS MATERIALIZED (
    SELECT i.n, i.stream_name, c.global_position, c.stream_name AS source, c.position,
           c.type, c.data, c.metadata, stored.global_position IS NOT NULL AS is_stored,
           row_number() OVER same_key = 1 AS is_first,
           CASE WHEN stored.global_position IS NULL THEN first_value(c.type) OVER same_key
                ELSE stored.type END AS meant_type,
           CASE WHEN stored.global_position IS NULL THEN first_value(c.data) OVER same_key
                ELSE stored.data END AS meant_data
    FROM unnest(commands, stream_names) WITH ORDINALITY AS i(command, stream_name, n)
    JOIN message_store.messages c ON c.global_position = i.command
    LEFT JOIN message_store.messages stored
      ON stored.stream_name = i.stream_name AND stored.position = 0
    WINDOW same_key AS (PARTITION BY i.stream_name ORDER BY i.n)
  ), copied AS (
    INSERT INTO message_store.messages (stream_name, position, type, data, metadata)
    SELECT i.stream_name, 0, i.type, i.data,
           reservation.followed_metadata(i.source, i.position, i.global_position, i.metadata)
    FROM input i
    WHERE i.is_first AND NOT i.is_stored
    ORDER BY i.n
  )
  SELECT i.n,
         CASE
           WHEN i.is_first AND NOT i.is_stored THEN 'reserved'
           WHEN (i.meant_type, reservation.content(i.meant_data, v.fields))
                IS NOT DISTINCT FROM (i.type, reservation.content(i.data, v.fields))
             THEN 'duplicate'
           ELSE 'conflict'
         END
  FROM input i
  CROSS JOIN LATERAL (SELECT reservation.volatile_fields(volatile, i.type)) AS v(fields)
  ORDER BY i.n;
END
$$;

-- Tells for commands whose entity's stream is started already whether they say the same as the one
-- that its first message follows.
CREATE OR REPLACE FUNCTION reservation.compare_initiations(
  commands bigint[], stream_names text[], volatile jsonb
) RETURNS TABLE (ordinal bigint, outcome text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT i.n,
         CASE WHEN (cause.type, reservation.content(cause.data, v.fields))
                   IS NOT DISTINCT FROM (c.type, reservation.content(c.data, v.fields))
              THEN 'duplicate' ELSE 'conflict' END
  FROM unnest(commands, stream_names) WITH ORDINALITY AS i(command, stream_name, n)
  JOIN message_store.messages c ON c.global_position = i.command
  LEFT JOIN message_store.messages initial
    ON initial.stream_name = i.stream_name AND initial.position = 0
  LEFT JOIN message_store.messages cause
    ON cause.global_position = reservation.causation(initial.metadata)
  CROSS JOIN LATERAL (SELECT reservation.volatile_fields(volatile, c.type)) AS v(fields)
  ORDER BY i.n;
END
$$;
