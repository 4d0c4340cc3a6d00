-- The reservation pattern in sets: the payload of a command never leaves the server.
--
-- The joins are outer although every row has a partner. Inner joins could be planned the other way
-- round: walk the whole log, and look up each message in the batch. A session that planned them
-- while the log was empty would keep that plan.

-- The stream that the key of a command names. `rules` has, for each type whose key is made of named
-- fields, the reservation category, up to four fields with the kind of JSON value of each, and the
-- pattern of the stream's name. There is no stream for a command of another type, for one that does
-- not fit the rule, and for one that is large even when compressed: its key may be too long.
--
-- It has no settings of its own, so that the planner can inline it.
CREATE OR REPLACE FUNCTION reservation.key_stream_of(
  rules jsonb, type text, data jsonb
) RETURNS TABLE (name text)
LANGUAGE sql STABLE
BEGIN ATOMIC
  SELECT CASE WHEN k.name ~ k.pattern THEN k.name END
  FROM (
    SELECT r.pattern,
           CASE WHEN pg_column_size(data) <= 500000
                 AND jsonb_typeof(data->r.field1) = r.kind1
                 AND (r.field2 IS NULL OR jsonb_typeof(data->r.field2) = r.kind2)
                 AND (r.field3 IS NULL OR jsonb_typeof(data->r.field3) = r.kind3)
                 AND (r.field4 IS NULL OR jsonb_typeof(data->r.field4) = r.kind4)
                THEN r.into || '-' || concat_ws('+', data->>r.field1, data->>r.field2,
                                                     data->>r.field3, data->>r.field4)
           END AS name
    FROM jsonb_to_recordset(rules)
         AS r(type text, "into" text, pattern text,
              field1 text, kind1 text, field2 text, kind2 text,
              field3 text, kind3 text, field4 text, kind4 text)
    WHERE r.type = key_stream_of.type
    OFFSET 0  -- so that each name is put together once
  ) AS k;
END;

-- Reads a batch of commands to reserve, from a consumer's part of a category. A command comes with
-- the stream that its key names, and without data and metadata. Where the server cannot tell that,
-- it comes whole, for the reader to decide. The batch ends once data and metadata come to
-- `max_bytes`; see read_part.
CREATE OR REPLACE FUNCTION reservation.read_commands(
  category text, first bigint, last bigint, batch_size bigint,
  partitions integer[], size integer, former_positions bigint[], rules jsonb, max_bytes bigint DEFAULT NULL
) RETURNS TABLE (
  id varchar, stream_name varchar, type varchar, "position" bigint, global_position bigint,
  data varchar, metadata varchar, "time" timestamp, key_stream text
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
#variable_conflict use_column
DECLARE
  bytes bigint := 0;
BEGIN
  FOR id, stream_name, type, "position", global_position, data, metadata, "time", key_stream IN
  SELECT m.id::varchar, m.stream_name, reservation.readable_type(m.type), m.position, m.global_position,
         CASE WHEN k.name IS NULL THEN reservation.readable_small_text(m.data) END,
         CASE WHEN k.name IS NULL THEN reservation.readable_small_text(m.metadata) END,
         reservation.readable_time(m.time), k.name
  FROM (
    SELECT m.*
    FROM message_store.messages m
    WHERE (message_store.category(m.stream_name), m.global_position)
          BETWEEN (read_commands.category, read_commands.first)
              AND (read_commands.category, 9223372036854775807)
      AND (partitions IS NULL OR m.global_position > read_commands.last OR reservation.is_in_part(
             m.stream_name, m.global_position, partitions, size, former_positions))
    ORDER BY message_store.category(m.stream_name), m.global_position
    LIMIT read_commands.batch_size
  ) AS m
  LEFT JOIN LATERAL reservation.key_stream_of(
    read_commands.rules, m.type, m.data) AS k ON true
  LOOP
    EXIT WHEN read_commands.global_position > read_commands.last;  -- see read_part
    IF read_commands.data = 'large' OR read_commands.metadata = 'large' THEN
      SELECT reservation.readable_text(m.data), reservation.readable_text(m.metadata)
      INTO read_commands.data, read_commands.metadata
      FROM message_store.messages m
      WHERE m.global_position = read_commands.global_position;
    END IF;
    RETURN NEXT;
    bytes := bytes + coalesce(octet_length(read_commands.data), 0)
                   + coalesce(octet_length(read_commands.metadata), 0);
    EXIT WHEN bytes >= max_bytes;
  END LOOP;
END
$$;

-- Copies each command to the stream that its idempotence key names, if that stream does not exist
-- yet. Returns the ordinals of the other commands, as duplicates or conflicts. A command of another
-- type than the first of its key, or another version of its shape, is a conflict here; the caller
-- compares what they mean. `ignoring` names, by message type, the fields in which a reissue may
-- differ. `corrected` has for each command the data that its letter was given, which replaces its
-- own; NULL where there is none. `former_names` has for each command the stream in which it may
-- have been reserved before its declaration was changed; NULL where none was changed.
CREATE OR REPLACE FUNCTION reservation.reserve(
  commands bigint[], stream_names text[], ignoring jsonb, former_names text[] DEFAULT NULL,
  corrected jsonb[] DEFAULT NULL
) RETURNS TABLE (ordinal bigint, outcome text)
LANGUAGE plpgsql VOLATILE
SET row_security = off
AS $$
#variable_conflict use_column
DECLARE
  result pg_catalog.record;
  are_new boolean[];  -- whether each command is the first of its key
  ids pg_catalog.uuid[] := reservation.copy_ids(pg_catalog.cardinality(commands));
BEGIN
  result := reservation.find_new(stream_names, former_names);
  stream_names := result.streams;
  are_new := result.are_new;

  INSERT INTO message_store.messages (id, stream_name, position, type, data, metadata, time)
  SELECT i.id, i.stream_name, 0, c.type, coalesce(i.content, c.data),
         reservation.copied_metadata(
           c.stream_name, c.position, c.global_position, c.metadata),
         pg_catalog.timezone('utc', pg_catalog.clock_timestamp())
  FROM (
    -- Not FROM unnest(...), which stores all of its rows before the first is read.
    SELECT pg_catalog.unnest(commands) AS command, pg_catalog.unnest(stream_names) AS stream_name,
           pg_catalog.unnest(corrected) AS content, pg_catalog.unnest(are_new) AS is_new,
           pg_catalog.unnest(ids) AS id, pg_catalog.generate_subscripts(commands, 1) AS n
  ) AS i
  LEFT JOIN message_store.messages c ON c.global_position OPERATOR(pg_catalog.=) i.command
  WHERE i.is_new
  ORDER BY i.n;

  IF NOT true OPERATOR(pg_catalog.=) ALL (are_new) THEN
    RETURN QUERY
    SELECT r.ordinal, r.outcome
    FROM reservation.compare_reserved(commands, stream_names, ignoring, corrected, are_new) AS r;
  END IF;
END
$$;

-- Locks the categories, and returns which commands are the first of their key. `streams` has the
-- former name of a command's stream if a copy is there, else the one in `stream_names`.
CREATE OR REPLACE FUNCTION reservation.find_new(
  stream_names text[], former_names text[], OUT streams text[], OUT are_new boolean[]
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
BEGIN
  PERFORM reservation.lock_categories(stream_names);

  IF former_names IS NOT NULL THEN
    -- A reservation under the former name is the command's.
    SELECT array_agg(coalesce(former.stream_name, i.stream_name) ORDER BY i.n) INTO stream_names
    FROM unnest(stream_names, former_names) WITH ORDINALITY AS i(stream_name, former_name, n)
    LEFT JOIN message_store.messages former
      ON former.stream_name = i.former_name AND former.position = 0;
  END IF;

  SELECT array_agg(i.is_new ORDER BY i.n) INTO are_new
  FROM (
    SELECT i.n,
           row_number() OVER (PARTITION BY i.stream_name COLLATE "C" ORDER BY i.n) = 1
           AND existing.position IS NULL AS is_new
    FROM unnest(stream_names) WITH ORDINALITY AS i(stream_name, n)
    LEFT JOIN message_store.messages existing
      ON existing.stream_name = i.stream_name AND existing.position = 0
  ) AS i;

  streams := stream_names;
END
$$;

-- UUIDs of version 7 (RFC 9562): the time, random bits, and a count that begins at random. So they
-- sort as the copies do, and the index over them grows at its end. All share one random number:
-- one for each copy from the system can cost half as much as the insertion.
CREATE OR REPLACE FUNCTION reservation.copy_ids(count integer) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  random_part text := replace(gen_random_uuid()::text, '-', '');
  id_prefix text := lpad(to_hex(
      floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
    || '7' || substr(random_part, 14, 7);
  count_from bigint := (('x' || substr(random_part, 21, 12))::bit(48)::bigint & 140737488355327)
    + 70368744177664;
BEGIN
  RETURN ARRAY(
    SELECT (id_prefix || to_hex(count_from + n))::uuid FROM generate_series(1, copy_ids.count) AS n);
END
$$;

-- Compares commands that are not the first of their key with the first: duplicate or conflict.
CREATE OR REPLACE FUNCTION reservation.compare_reserved(
  commands bigint[], stream_names text[], ignoring jsonb, corrected jsonb[], are_new boolean[]
) RETURNS TABLE (ordinal bigint, outcome text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH ignoring AS MATERIALIZED (
    SELECT v.key AS type, ARRAY(SELECT jsonb_array_elements_text(v.value)) AS fields
    FROM jsonb_each(compare_reserved.ignoring) AS v
  )
  SELECT i.n,
         CASE WHEN (first.type, reservation.schema_version(first.metadata),
                    reservation.content(first.data, coalesce(v.fields, '{}')))
                   IS NOT DISTINCT FROM
                   (c.type, reservation.schema_version(c.metadata),
                    reservation.content(coalesce(i.content, c.data), coalesce(v.fields, '{}')))
              THEN 'duplicate'
              WHEN (first.type, reservation.schema_version(first.metadata))
                   IS NOT DISTINCT FROM (c.type, reservation.schema_version(c.metadata))
               AND EXISTS (
                     SELECT FROM reservation.corrected_contents(
                       first.id, first.global_position, first.metadata) AS k(data)
                     WHERE reservation.content(k.data, coalesce(v.fields, '{}'))
                         = reservation.content(coalesce(i.content, c.data), coalesce(v.fields, '{}')))
              THEN 'duplicate' ELSE 'conflict' END
  FROM unnest(commands, stream_names, corrected, are_new)
       WITH ORDINALITY AS i(command, stream_name, content, is_new, n)
  LEFT JOIN message_store.messages c ON c.global_position = i.command
  LEFT JOIN message_store.messages first
    ON first.stream_name = i.stream_name AND first.position = 0
  LEFT JOIN ignoring v ON v.type = c.type
  WHERE NOT i.is_new
  ORDER BY i.n;
END
$$;

-- Compares commands whose entity's stream is already started with the command that started it: the
-- cause of the first message that is no pseudo event (see reservation.starts). `corrected` is as in
-- reserve.
CREATE OR REPLACE FUNCTION reservation.compare_initiations(
  commands bigint[], stream_names text[], ignoring jsonb, corrected jsonb[] DEFAULT NULL
) RETURNS TABLE (ordinal bigint, outcome text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH ignoring AS MATERIALIZED (
    SELECT v.key AS type, ARRAY(SELECT jsonb_array_elements_text(v.value)) AS fields
    FROM jsonb_each(compare_initiations.ignoring) AS v
  )
  SELECT i.n,
         CASE WHEN (cause.type, reservation.schema_version(cause.metadata),
                    reservation.content(cause.data, coalesce(v.fields, '{}')))
                   IS NOT DISTINCT FROM
                   (c.type, reservation.schema_version(c.metadata),
                    reservation.content(coalesce(i.content, c.data), coalesce(v.fields, '{}')))
              THEN 'duplicate'
              WHEN (cause.type, reservation.schema_version(cause.metadata))
                   IS NOT DISTINCT FROM (c.type, reservation.schema_version(c.metadata))
               AND EXISTS (
                     SELECT FROM reservation.corrected_contents(
                       cause.id, cause.global_position, NULL) AS k(data)
                     WHERE reservation.content(k.data, coalesce(v.fields, '{}'))
                         = reservation.content(coalesce(i.content, c.data), coalesce(v.fields, '{}')))
              THEN 'duplicate' ELSE 'conflict' END
  FROM unnest(commands, stream_names, corrected)
       WITH ORDINALITY AS i(command, stream_name, content, n)
  LEFT JOIN message_store.messages c ON c.global_position = i.command
  LEFT JOIN LATERAL (
    SELECT m.metadata
    FROM message_store.messages m
    WHERE m.stream_name = i.stream_name AND reservation.starts(m.type, m.data)
    ORDER BY m.position
    LIMIT 1
  ) AS initial ON true
  LEFT JOIN message_store.messages cause
    ON cause.global_position = reservation.causation(initial.metadata)
  LEFT JOIN ignoring v ON v.type = c.type
  ORDER BY i.n;
END
$$;
