-- Writing, under the lock of the message's category: it is what lets a reader of one category
-- trust that no lower global position will appear behind it. The settings message_store.debug_write
-- and message_store.debug make each function print its arguments in a notice.
--
-- Triggers on the log find the search_path, and all other settings, as the writer has them. So nothing is set
-- here, and every name is in full, those of operators too.

CREATE OR REPLACE FUNCTION message_store.acquire_lock(stream_name varchar) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  category_hash bigint := message_store.hash_64(message_store.category(acquire_lock.stream_name));
BEGIN
  PERFORM pg_catalog.pg_advisory_xact_lock(category_hash);
  IF pg_catalog.current_setting('message_store.debug_write', true) OPERATOR(pg_catalog.=) 'on'
     OR pg_catalog.current_setting('message_store.debug', true) OPERATOR(pg_catalog.=) 'on' THEN
    RAISE NOTICE 'acquire_lock(stream_name => %) locked %', acquire_lock.stream_name, category_hash;
  END IF;

  RETURN category_hash;
END
$$;

-- Volatile, as in Message DB: it sees what the statement that calls it has written. The last row of
-- the index and not its maximum: for that the planner may read a stream that it takes for a short one.
-- In PL/pgSQL, which keeps the plan; one of a function in SQL is made for each call.
CREATE OR REPLACE FUNCTION message_store.stream_version(stream_name varchar) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  version bigint;
BEGIN
  SELECT m.position INTO version
  FROM message_store.messages m
  WHERE m.stream_name OPERATOR(pg_catalog.=) stream_version.stream_name
  ORDER BY m.position DESC
  LIMIT 1;
  RETURN version;
END
$$;

CREATE OR REPLACE FUNCTION message_store.write_message(
  id varchar,
  stream_name varchar,
  type varchar,
  data jsonb,
  metadata jsonb DEFAULT NULL,
  expected_version bigint DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  category_hash bigint :=
    message_store.hash_64(message_store.category(write_message.stream_name));
  message_id pg_catalog.uuid;
  current_version bigint;
BEGIN
  -- As acquire_lock does it.
  PERFORM pg_catalog.pg_advisory_xact_lock(category_hash);

  current_version := coalesce(message_store.stream_version(write_message.stream_name), -1);

  IF pg_catalog.current_setting('message_store.debug_write', true) OPERATOR(pg_catalog.=) 'on'
     OR pg_catalog.current_setting('message_store.debug', true) OPERATOR(pg_catalog.=) 'on' THEN
    RAISE NOTICE 'write_message(id => %, stream_name => %, type => %, data => %, metadata => %, '
                 'expected_version => %) found version %',
      write_message.id, write_message.stream_name, write_message.type, write_message.data,
      write_message.metadata, write_message.expected_version, current_version;
  END IF;

  IF write_message.expected_version OPERATOR(pg_catalog.<>) current_version THEN
    RAISE EXCEPTION 'Wrong expected version: % (Stream: %, Stream Version: %)',
      write_message.expected_version, write_message.stream_name, current_version
      USING CONSTRAINT = 'expected_version';
  END IF;

  -- Before the insertion, which takes a global position whether it succeeds or not.
  message_id := write_message.id::pg_catalog.uuid;

  INSERT INTO message_store.messages (id, stream_name, position, type, data, metadata)
  VALUES (message_id, write_message.stream_name, current_version OPERATOR(pg_catalog.+) 1,
          write_message.type, write_message.data, write_message.metadata);

  RETURN current_version OPERATOR(pg_catalog.+) 1;
END
$$;
