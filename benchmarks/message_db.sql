-- Functions as those of Message DB 1.3.0 are written: in PL/pgSQL, finding each other and the table by the
-- caller's search_path, with the same checks and settings, and with reads that are put together for each
-- call. They are what ours are compared with. Nothing of Message DB's own code is in here.

CREATE FUNCTION message_store.message_store_version() RETURNS varchar
LANGUAGE plpgsql VOLATILE
AS $$ BEGIN RETURN '1.3.0'; END $$;

CREATE FUNCTION message_store.id(stream_name varchar) RETURNS varchar
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
  dash integer := strpos($1, '-');
BEGIN
  IF dash = 0 THEN
    RETURN NULL;
  END IF;
  RETURN substring($1, dash + 1);
END
$$;

CREATE FUNCTION message_store.cardinal_id(stream_name varchar) RETURNS varchar
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
  whole varchar := id($1);
BEGIN
  IF whole IS NULL THEN
    RETURN NULL;
  END IF;
  RETURN split_part(whole, '+', 1);
END
$$;

CREATE FUNCTION message_store.category(stream_name varchar) RETURNS varchar
LANGUAGE plpgsql IMMUTABLE
AS $$ BEGIN RETURN split_part($1, '-', 1); END $$;

CREATE FUNCTION message_store.is_category(stream_name varchar) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
  IF strpos($1, '-') = 0 THEN
    RETURN true;
  END IF;
  RETURN false;
END
$$;

CREATE FUNCTION message_store.hash_64(value varchar) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
  hash bigint;
BEGIN
  SELECT left('x' || md5($1), 17)::bit(64)::bigint INTO hash;
  RETURN hash;
END
$$;

CREATE FUNCTION message_store.acquire_lock(stream_name varchar) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  name varchar;
  hash bigint;
BEGIN
  name := category($1);
  hash := hash_64(name);
  PERFORM pg_advisory_xact_lock(hash);
  IF current_setting('message_store.debug_write', true) = 'on'
     OR current_setting('message_store.debug', true) = 'on' THEN
    RAISE NOTICE 'locked % for %', hash, $1;
  END IF;
  RETURN hash;
END
$$;

CREATE FUNCTION message_store.stream_version(stream_name varchar) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  last bigint;
BEGIN
  SELECT max(m.position) INTO last FROM messages m WHERE m.stream_name = $1;
  RETURN last;
END
$$;

CREATE FUNCTION message_store.write_message(
  id varchar, stream_name varchar, type varchar, data jsonb,
  metadata jsonb DEFAULT NULL, expected_version bigint DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  key uuid;
  last bigint;
  "position" bigint;
BEGIN
  PERFORM acquire_lock($2);
  last := stream_version($2);
  IF last IS NULL THEN
    last := -1;
  END IF;
  IF $6 IS NOT NULL THEN
    IF $6 != last THEN
      RAISE EXCEPTION 'Wrong expected version: % (Stream: %, Stream Version: %)', $6, $2, last;
    END IF;
  END IF;
  "position" := last + 1;
  key = uuid($1);
  INSERT INTO messages (id, stream_name, position, type, data, metadata)
  VALUES (key, $2, "position", $3, $4, $5);
  IF current_setting('message_store.debug_write', true) = 'on'
     OR current_setting('message_store.debug', true) = 'on' THEN
    RAISE NOTICE 'wrote % to %', $1, $2;
  END IF;
  RETURN "position";
END
$$;

CREATE FUNCTION message_store.get_stream_messages(
  stream_name varchar, "position" bigint DEFAULT 0, batch_size bigint DEFAULT 1000,
  condition varchar DEFAULT NULL
) RETURNS SETOF message_store.message
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  command text;
  allowed text;
BEGIN
  IF is_category($1) THEN
    RAISE EXCEPTION 'Must be a stream name: %', $1;
  END IF;
  $2 := coalesce($2, 0);
  $3 := coalesce($3, 1000);
  command := '
    SELECT id::varchar, stream_name::varchar, type::varchar, position::bigint,
           global_position::bigint, data::varchar, metadata::varchar, time::timestamp
    FROM messages
    WHERE stream_name = $1 AND position >= $2';
  IF $4 IS NOT NULL THEN
    allowed := current_setting('message_store.sql_condition', true);
    IF allowed IS NULL OR allowed = 'off' THEN
      RAISE EXCEPTION 'Retrieval with SQL condition is not activated';
    END IF;
    command := command || ' AND (%s)';
    command := format(command, $4);
  END IF;
  command := command || ' ORDER BY position ASC';
  IF $3 != -1 THEN
    command := command || ' LIMIT $3';
  END IF;
  IF current_setting('message_store.debug_get', true) = 'on'
     OR current_setting('message_store.debug', true) = 'on' THEN
    RAISE NOTICE 'read % with %', $1, command;
  END IF;
  RETURN QUERY EXECUTE command USING $1, $2, $3;
END
$$;

CREATE FUNCTION message_store.get_category_messages(
  category varchar, "position" bigint DEFAULT 1, batch_size bigint DEFAULT 1000,
  correlation varchar DEFAULT NULL, consumer_group_member bigint DEFAULT NULL,
  consumer_group_size bigint DEFAULT NULL, condition varchar DEFAULT NULL
) RETURNS SETOF message_store.message
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  command text;
  allowed text;
BEGIN
  IF NOT is_category($1) THEN
    RAISE EXCEPTION 'Must be a category: %', $1;
  END IF;
  $2 := coalesce($2, 1);
  $3 := coalesce($3, 1000);
  command := '
    SELECT id::varchar, stream_name::varchar, type::varchar, position::bigint,
           global_position::bigint, data::varchar, metadata::varchar, time::timestamp
    FROM messages
    WHERE category(stream_name) = $1 AND global_position >= $2';
  IF $4 IS NOT NULL THEN
    IF position('-' IN $4) > 0 THEN
      RAISE EXCEPTION 'Correlation must be a category (Correlation: %)', $4;
    END IF;
    command := command || ' AND category(metadata->>''correlationStreamName'') = $4';
  END IF;
  IF ($5 IS NOT NULL AND $6 IS NULL) OR ($5 IS NULL AND $6 IS NOT NULL) THEN
    RAISE EXCEPTION 'Consumer group member and size must be specified';
  END IF;
  IF $5 IS NOT NULL AND $6 IS NOT NULL THEN
    IF $6 < 1 THEN
      RAISE EXCEPTION 'Consumer group size must not be less than 1';
    END IF;
    IF $5 < 0 THEN
      RAISE EXCEPTION 'Consumer group member must not be less than 0';
    END IF;
    IF $5 >= $6 THEN
      RAISE EXCEPTION 'Consumer group member must be less than the group size';
    END IF;
    command := command || ' AND mod(@hash_64(cardinal_id(stream_name)), $6) = $5';
  END IF;
  IF $7 IS NOT NULL THEN
    allowed := current_setting('message_store.sql_condition', true);
    IF allowed IS NULL OR allowed = 'off' THEN
      RAISE EXCEPTION 'Retrieval with SQL condition is not activated';
    END IF;
    command := command || ' AND (%s)';
    command := format(command, $7);
  END IF;
  command := command || ' ORDER BY global_position ASC';
  IF $3 != -1 THEN
    command := command || ' LIMIT $3';
  END IF;
  IF current_setting('message_store.debug_get', true) = 'on'
     OR current_setting('message_store.debug', true) = 'on' THEN
    RAISE NOTICE 'read % with %', $1, command;
  END IF;
  RETURN QUERY EXECUTE command USING $1, $2, $3, $4, $5, $6::smallint;
END
$$;

CREATE FUNCTION message_store.get_last_stream_message(
  stream_name varchar, type varchar DEFAULT NULL
) RETURNS SETOF message_store.message
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  command text;
BEGIN
  command := '
    SELECT id::varchar, stream_name::varchar, type::varchar, position::bigint,
           global_position::bigint, data::varchar, metadata::varchar, time::timestamp
    FROM messages
    WHERE stream_name = $1';
  IF $2 IS NOT NULL THEN
    command := command || ' AND type = $2';
  END IF;
  command := command || ' ORDER BY position DESC LIMIT 1';
  IF current_setting('message_store.debug_get', true) = 'on'
     OR current_setting('message_store.debug', true) = 'on' THEN
    RAISE NOTICE 'read the last of % with %', $1, command;
  END IF;
  RETURN QUERY EXECUTE command USING $1, $2;
END
$$;
