-- The functions of a message store that we did not make. They have Message DB's interface and what
-- of its nature matters to us: they find each other, and the table, by the caller's search_path; the
-- planner cannot look into them; and a wrong version is known by its text alone.

CREATE FUNCTION message_store.message_store_version() RETURNS varchar
LANGUAGE plpgsql AS $$ BEGIN RETURN '1.3.0'; END $$;

CREATE FUNCTION message_store.category(stream_name varchar) RETURNS varchar
LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN regexp_replace($1, '-.*', ''); END $$;

CREATE FUNCTION message_store.id(stream_name varchar) RETURNS varchar
LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN substring($1 FROM '-(.*)'); END $$;

CREATE FUNCTION message_store.cardinal_id(stream_name varchar) RETURNS varchar
LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN regexp_replace(id($1), '\+.*', ''); END $$;

CREATE FUNCTION message_store.is_category(stream_name varchar) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN id($1) IS NULL; END $$;

CREATE FUNCTION message_store.hash_64(value varchar) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
AS $$ BEGIN RETURN ('x' || substr(md5($1), 1, 16))::bit(64)::bigint; END $$;

CREATE FUNCTION message_store.acquire_lock(stream_name varchar) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
  key bigint := hash_64(category($1));
BEGIN
  PERFORM pg_advisory_xact_lock(key);
  RETURN key;
END
$$;

CREATE FUNCTION message_store.stream_version(stream_name varchar) RETURNS bigint
LANGUAGE plpgsql
AS $$ BEGIN RETURN (SELECT max(m.position) FROM messages m WHERE m.stream_name = $1); END $$;

CREATE FUNCTION message_store.write_message(
  id varchar, stream_name varchar, type varchar, data jsonb,
  metadata jsonb DEFAULT NULL, expected_version bigint DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
  last bigint;
BEGIN
  PERFORM acquire_lock($2);
  last := coalesce(stream_version($2), -1);
  IF $6 <> last THEN
    RAISE 'Wrong expected version: % (Stream: %, Stream Version: %)', $6, $2, last;
  END IF;
  INSERT INTO messages (id, stream_name, position, type, data, metadata)
  VALUES ($1::uuid, $2, last + 1, $3, $4, $5);
  RETURN last + 1;
END
$$;

-- The reads, as plain as can be: no condition, no correlation, no check of what is asked.

CREATE FUNCTION message_store.get_stream_messages(
  stream_name varchar, "position" bigint DEFAULT 0, batch_size bigint DEFAULT 1000,
  condition varchar DEFAULT NULL
) RETURNS SETOF message_store.message
LANGUAGE plpgsql
AS $$
BEGIN
  RETURN QUERY
    SELECT m.id::varchar, m.stream_name::varchar, m.type::varchar, m.position, m.global_position,
           m.data::varchar, m.metadata::varchar, m.time
    FROM messages m
    WHERE m.stream_name = $1 AND m.position >= $2
    ORDER BY m.position LIMIT nullif($3, -1);
END
$$;

CREATE FUNCTION message_store.get_category_messages(
  category varchar, "position" bigint DEFAULT 1, batch_size bigint DEFAULT 1000,
  correlation varchar DEFAULT NULL, consumer_group_member bigint DEFAULT NULL,
  consumer_group_size bigint DEFAULT NULL, condition varchar DEFAULT NULL
) RETURNS SETOF message_store.message
LANGUAGE plpgsql
AS $$
BEGIN
  RETURN QUERY
    SELECT m.id::varchar, m.stream_name::varchar, m.type::varchar, m.position, m.global_position,
           m.data::varchar, m.metadata::varchar, m.time
    FROM messages m
    WHERE category(m.stream_name) = $1 AND m.global_position >= $2
      AND ($5 IS NULL OR mod(abs(hash_64(cardinal_id(m.stream_name))), $6) = $5)
    ORDER BY m.global_position LIMIT nullif($3, -1);
END
$$;

CREATE FUNCTION message_store.get_last_stream_message(
  stream_name varchar, type varchar DEFAULT NULL
) RETURNS SETOF message_store.message
LANGUAGE plpgsql
AS $$
BEGIN
  RETURN QUERY
    SELECT m.id::varchar, m.stream_name::varchar, m.type::varchar, m.position, m.global_position,
           m.data::varchar, m.metadata::varchar, m.time
    FROM messages m
    WHERE m.stream_name = $1 AND ($2 IS NULL OR m.type = $2)
    ORDER BY m.position DESC LIMIT 1;
END
$$;
