-- Writing, under the lock of the message's category: it is what lets a reader of one category
-- trust that no lower global position will appear behind it.

CREATE OR REPLACE FUNCTION message_store.acquire_lock(stream_name varchar) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  category_hash bigint := message_store.hash_64(message_store.category(acquire_lock.stream_name));
BEGIN
  PERFORM pg_advisory_xact_lock(category_hash);
  RETURN category_hash;
END
$$;

CREATE OR REPLACE FUNCTION message_store.stream_version(stream_name varchar) RETURNS bigint
LANGUAGE sql STABLE
RETURN (SELECT max(m.position) FROM message_store.messages m
        WHERE m.stream_name = stream_version.stream_name);

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
  current_version bigint;
BEGIN
  PERFORM message_store.acquire_lock(write_message.stream_name);

  current_version := coalesce(message_store.stream_version(write_message.stream_name), -1);

  IF write_message.expected_version IS NOT NULL
     AND write_message.expected_version <> current_version THEN
    RAISE EXCEPTION 'Wrong expected version: % (Stream: %, Stream Version: %)',
      write_message.expected_version, write_message.stream_name, current_version
      USING CONSTRAINT = 'expected_version';
  END IF;

  INSERT INTO message_store.messages (id, stream_name, position, type, data, metadata)
  VALUES (write_message.id::uuid, write_message.stream_name, current_version + 1,
          write_message.type, write_message.data, write_message.metadata);

  RETURN current_version + 1;
END
$$;
