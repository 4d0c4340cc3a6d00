-- Reading streams and categories. Positions are inclusive; a NULL position or batch size means the
-- default, and a batch size of -1 means no limit.
--
-- A condition is SQL of the caller's, put in as it is, once message_store.sql_condition has any value
-- but off. Only for it is the schema public looked in, where extensions put their functions. The
-- settings message_store.debug_get and message_store.debug make each function print its arguments in a notice.

CREATE OR REPLACE FUNCTION message_store.get_stream_messages(
  stream_name varchar,
  "position" bigint DEFAULT 0,
  batch_size bigint DEFAULT 1000,
  condition varchar DEFAULT NULL
) RETURNS SETOF message_store.message
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, message_store, pg_temp
AS $$
DECLARE
  path text;
BEGIN
  IF message_store.is_category(get_stream_messages.stream_name) THEN
    RAISE EXCEPTION 'Must be a stream name: %', get_stream_messages.stream_name;
  END IF;
  IF get_stream_messages.condition IS NOT NULL
     AND coalesce(current_setting('message_store.sql_condition', true), 'off') = 'off' THEN
    RAISE EXCEPTION 'Retrieval with SQL condition is not activated';
  END IF;

  IF current_setting('message_store.debug_get', true) = 'on'
     OR current_setting('message_store.debug', true) = 'on' THEN
    RAISE NOTICE 'get_stream_messages(stream_name => %, position => %, batch_size => %, '
                 'condition => %)',
      get_stream_messages.stream_name, get_stream_messages.position,
      get_stream_messages.batch_size, get_stream_messages.condition;
  END IF;

  IF get_stream_messages.condition IS NULL THEN
    RETURN QUERY
      SELECT m.id::varchar, m.stream_name::varchar, m.type::varchar, m.position, m.global_position,
             m.data::varchar, m.metadata::varchar, m.time
      FROM message_store.messages m
      WHERE m.stream_name = get_stream_messages.stream_name
        AND m.position >= coalesce(get_stream_messages.position, 0)
      ORDER BY m.position
      LIMIT nullif(coalesce(get_stream_messages.batch_size, 1000), -1);
    RETURN;
  END IF;

  path := set_config('search_path', 'pg_catalog, message_store, public, pg_temp', true);
  RETURN QUERY EXECUTE format(
    'SELECT id::varchar, stream_name::varchar, type::varchar, position, global_position,
            data::varchar, metadata::varchar, time
     FROM message_store.messages
     WHERE stream_name = $1 AND position >= $2 AND (%s)
     ORDER BY position
     LIMIT $3',
    get_stream_messages.condition)
  USING get_stream_messages.stream_name,
        coalesce(get_stream_messages.position, 0),
        nullif(coalesce(get_stream_messages.batch_size, 1000), -1);
END
$$;

CREATE OR REPLACE FUNCTION message_store.get_category_messages(
  category varchar,
  "position" bigint DEFAULT 1,
  batch_size bigint DEFAULT 1000,
  correlation varchar DEFAULT NULL,
  consumer_group_member bigint DEFAULT NULL,
  consumer_group_size bigint DEFAULT NULL,
  condition varchar DEFAULT NULL
) RETURNS SETOF message_store.message
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, message_store, pg_temp
AS $$
DECLARE
  member bigint := get_category_messages.consumer_group_member;
  size bigint := get_category_messages.consumer_group_size;
  path text;
  refused text;
  restriction text := '';
BEGIN
  IF NOT message_store.is_category(get_category_messages.category) THEN
    RAISE EXCEPTION 'Must be a category: %', get_category_messages.category;
  END IF;

  IF get_category_messages.correlation IS NOT NULL THEN
    IF NOT message_store.is_category(get_category_messages.correlation) THEN
      RAISE EXCEPTION 'Correlation must be a category (Correlation: %)',
        get_category_messages.correlation;
    END IF;
    restriction := restriction ||
      ' AND message_store.category(metadata->>''correlationStreamName'') = $4';
  END IF;

  IF member IS NOT NULL OR size IS NOT NULL THEN
    refused := CASE WHEN member IS NULL OR size IS NULL THEN 'member and size must be specified'
                    WHEN size < 1 THEN 'size must not be less than 1'
                    WHEN member < 0 THEN 'member must not be less than 0'
                    WHEN member >= size THEN 'member must be less than the group size' END;
    IF refused IS NOT NULL THEN
      RAISE EXCEPTION 'Consumer group % (Consumer Group Member: %, Consumer Group Size: %)',
        refused, member, size;
    END IF;
    restriction := restriction ||
      ' AND mod(abs(message_store.hash_64(message_store.cardinal_id(stream_name))), $6) = $5';
  END IF;

  IF get_category_messages.condition IS NOT NULL THEN
    IF coalesce(current_setting('message_store.sql_condition', true), 'off') = 'off' THEN
      RAISE EXCEPTION 'Retrieval with SQL condition is not activated';
    END IF;
    path := set_config('search_path', 'pg_catalog, message_store, public, pg_temp', true);
    restriction := restriction || format(' AND (%s)', get_category_messages.condition);
  END IF;

  IF current_setting('message_store.debug_get', true) = 'on'
     OR current_setting('message_store.debug', true) = 'on' THEN
    RAISE NOTICE 'get_category_messages(category => %, position => %, batch_size => %, '
                 'correlation => %, consumer_group_member => %, consumer_group_size => %, '
                 'condition => %)',
      get_category_messages.category, get_category_messages.position,
      get_category_messages.batch_size, get_category_messages.correlation,
      member, size, get_category_messages.condition;
  END IF;

  IF restriction = '' THEN
    RETURN QUERY
      SELECT m.id::varchar, m.stream_name::varchar, m.type::varchar, m.position, m.global_position,
             m.data::varchar, m.metadata::varchar, m.time
      FROM message_store.messages m
      WHERE message_store.category(m.stream_name) = get_category_messages.category
        AND m.global_position >= coalesce(get_category_messages.position, 1)
      ORDER BY m.global_position
      LIMIT nullif(coalesce(get_category_messages.batch_size, 1000), -1);
    RETURN;
  END IF;

  RETURN QUERY EXECUTE
    'SELECT id::varchar, stream_name::varchar, type::varchar, position, global_position,
            data::varchar, metadata::varchar, time
     FROM message_store.messages
     WHERE message_store.category(stream_name) = $1 AND global_position >= $2' || restriction || '
     ORDER BY global_position
     LIMIT $3'
  USING get_category_messages.category,
        coalesce(get_category_messages.position, 1),
        nullif(coalesce(get_category_messages.batch_size, 1000), -1),
        get_category_messages.correlation, member, size::smallint;
END
$$;

CREATE OR REPLACE FUNCTION message_store.get_last_stream_message(
  stream_name varchar,
  type varchar DEFAULT NULL
) RETURNS SETOF message_store.message
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, message_store, pg_temp
AS $$
BEGIN
  IF current_setting('message_store.debug_get', true) = 'on'
     OR current_setting('message_store.debug', true) = 'on' THEN
    RAISE NOTICE 'get_last_stream_message(stream_name => %, type => %)',
      get_last_stream_message.stream_name, get_last_stream_message.type;
  END IF;

  RETURN QUERY
    SELECT m.id::varchar, m.stream_name::varchar, m.type::varchar, m.position, m.global_position,
           m.data::varchar, m.metadata::varchar, m.time
    FROM message_store.messages m
    WHERE m.stream_name = get_last_stream_message.stream_name
      AND (get_last_stream_message.type IS NULL OR m.type = get_last_stream_message.type)
    ORDER BY m.position DESC
    LIMIT 1;
END
$$;
