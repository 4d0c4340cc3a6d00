-- Reading a batch in order. Of the functions in message_store these, and those that write, call only
-- category and hash_64: the others, where Message DB itself installed them, find its table by the
-- search_path, which is pinned here.
--
-- With row_security off, a policy that would hide messages is an error: nothing is passed over unseen.
-- Each reads a range of category and position together, which leaves the planner no index but the right one;
-- planner.sql has the settings that fix how.

CREATE OR REPLACE FUNCTION reservation.read_stream(
  stream_name text, "position" bigint, batch_size bigint
) RETURNS SETOF message_store.message
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
  SELECT m.id::varchar, m.stream_name::varchar, reservation.readable_type(m.type),
         m.position, m.global_position,
         reservation.readable_text(m.data), reservation.readable_text(m.metadata),
         reservation.readable_time(m.time)
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
SET row_security = off
AS $$
  SELECT m.id::varchar, m.stream_name::varchar, reservation.readable_type(m.type),
         m.position, m.global_position,
         reservation.readable_text(m.data), reservation.readable_text(m.metadata),
         reservation.readable_time(m.time)
  FROM message_store.messages m
  WHERE (message_store.category(m.stream_name), m.global_position)
        BETWEEN (read_category.category, read_category.position)
            AND (read_category.category, 9223372036854775807)
  ORDER BY message_store.category(m.stream_name), m.global_position
  LIMIT read_category.batch_size
$$;

-- The part of a category that a correlation, or a member of a consumer group, or both, pick out; NULL
-- leaves one out. A stream without an id belongs to no member, as Message DB has it.
CREATE OR REPLACE FUNCTION reservation.read_category_part(
  category text, "position" bigint, batch_size bigint,
  correlation text, consumer_group_member bigint, consumer_group_size bigint
) RETURNS SETOF message_store.message
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
#variable_conflict use_column
BEGIN
  IF correlation IS NULL THEN
    RETURN QUERY
      SELECT m.id::varchar, m.stream_name::varchar, reservation.readable_type(m.type), m.position,
             m.global_position, reservation.readable_text(m.data), reservation.readable_text(m.metadata),
             reservation.readable_time(m.time)
      FROM message_store.messages m
      WHERE (message_store.category(m.stream_name), m.global_position)
            BETWEEN (read_category_part.category, read_category_part.position)
                AND (read_category_part.category, 9223372036854775807)
        AND reservation.is_of_member(m.stream_name, consumer_group_member, consumer_group_size)
      ORDER BY message_store.category(m.stream_name), m.global_position
      LIMIT read_category_part.batch_size;
  ELSE
    -- The index holds the correlation too, so what is of another is not fetched from the table.
    RETURN QUERY
      SELECT m.id::varchar, m.stream_name::varchar, reservation.readable_type(m.type), m.position,
             m.global_position, reservation.readable_text(m.data), reservation.readable_text(m.metadata),
             reservation.readable_time(m.time)
      FROM message_store.messages m
      WHERE (message_store.category(m.stream_name), m.global_position)
            BETWEEN (read_category_part.category, read_category_part.position)
                AND (read_category_part.category, 9223372036854775807)
        AND message_store.category(m.metadata->>'correlationStreamName') = correlation
        AND (consumer_group_size IS NULL OR reservation.is_of_member(
               m.stream_name, consumer_group_member, consumer_group_size))
      ORDER BY message_store.category(m.stream_name), m.global_position
      LIMIT read_category_part.batch_size;
  END IF;
END
$$;

-- The part of a category that a consumer has, up to a position; all of it where `partitions` is NULL. It
-- ends with the message whose data and metadata bring those of all to `max_bytes`. The loop fetches ten
-- rows and then fifty at a time, so what may be large is turned into text only in it.
--
-- The loop ends the part, too. Before PostgreSQL 18 a scan stops for the first column of a row comparison
-- only: it would look through the index to the category's end for what is not after `last`.
CREATE OR REPLACE FUNCTION reservation.read_part(
  category text, first bigint, last bigint, batch_size bigint,
  partitions integer[], size integer, former_positions bigint[], max_bytes bigint DEFAULT NULL
) RETURNS SETOF message_store.message
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
#variable_conflict use_column
DECLARE
  message message_store.message;
  bytes bigint := 0;
BEGIN
  FOR message IN
    SELECT m.id::varchar, m.stream_name::varchar, reservation.readable_type(m.type), m.position,
           m.global_position, reservation.readable_small_text(m.data),
           reservation.readable_small_text(m.metadata), reservation.readable_time(m.time)
    FROM message_store.messages m
    WHERE (message_store.category(m.stream_name), m.global_position)
          BETWEEN (read_part.category, read_part.first)
              AND (read_part.category, 9223372036854775807)
      AND (partitions IS NULL OR m.global_position > read_part.last OR reservation.is_in_part(
             m.stream_name, m.global_position, partitions, size, former_positions))
    ORDER BY message_store.category(m.stream_name), m.global_position
    LIMIT read_part.batch_size
  LOOP
    EXIT WHEN message.global_position > read_part.last;
    IF message.data = 'large' OR message.metadata = 'large' THEN
      SELECT reservation.readable_text(m.data), reservation.readable_text(m.metadata)
      INTO message.data, message.metadata
      FROM message_store.messages m
      WHERE m.global_position = message.global_position;
    END IF;
    RETURN NEXT message;
    bytes := bytes + coalesce(octet_length(message.data), 0)
                   + coalesce(octet_length(message.metadata), 0);
    EXIT WHEN bytes >= max_bytes;
  END LOOP;
END
$$;

-- The global position of a category's last message, 0 if it has none.
CREATE OR REPLACE FUNCTION reservation.category_head(category text) RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
  SELECT coalesce((
    SELECT m.global_position FROM message_store.messages m
    WHERE (message_store.category(m.stream_name), m.global_position)
          BETWEEN (category_head.category, 0) AND (category_head.category, 9223372036854775807)
    ORDER BY message_store.category(m.stream_name) DESC, m.global_position DESC
    LIMIT 1), 0)
$$;

-- Reading many streams, each from a position of its own to its end.
CREATE OR REPLACE FUNCTION reservation.read_streams(
  stream_names text[], positions bigint[]
) RETURNS SETOF message_store.message
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
BEGIN
  RETURN QUERY
    SELECT m.id::varchar, m.stream_name::varchar, reservation.readable_type(m.type),
           m.position, m.global_position,
           reservation.readable_text(m.data), reservation.readable_text(m.metadata),
           reservation.readable_time(m.time)
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
SET row_security = off
AS $$
  SELECT m.id::varchar, m.stream_name::varchar, reservation.readable_type(m.type),
         m.position, m.global_position,
         reservation.readable_text(m.data), reservation.readable_text(m.metadata),
         reservation.readable_time(m.time)
  FROM message_store.messages m
  WHERE m.stream_name = last_message.stream_name
    AND (last_message.type IS NULL OR m.type = last_message.type)
  ORDER BY m.position DESC
  LIMIT 1
$$;
