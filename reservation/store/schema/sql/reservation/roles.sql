-- Who may write where. The functions that write run with the rights of their caller. One that may
-- not insert into the log is handed on to send_messages, which runs with the rights of its owner and
-- writes for it to the categories that its role was given.
--
-- Within send_messages current_user is that owner. Who calls is the role that SET ROLE or SET LOCAL
-- ROLE named, else the session's user, also after SET SESSION AUTHORIZATION. It is not the owner of
-- some other SECURITY DEFINER function that the call comes through, nor the owner of a table whose
-- index somebody else rebuilds: there the session's role is not the one that asks. Whose session may
-- insert has no need of send_messages, and is refused, so that no sender can leave code that writes
-- with such rights.

CREATE OR REPLACE FUNCTION reservation.may_insert() RETURNS boolean
LANGUAGE sql STABLE
RETURN CASE WHEN has_schema_privilege('message_store', 'USAGE')
            THEN has_table_privilege('message_store.messages', 'INSERT') ELSE false END;

CREATE OR REPLACE FUNCTION reservation.check_may_send(stream_names text[]) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  caller name := coalesce(nullif(current_setting('role'), 'none'), session_user);
  refused text;
BEGIN
  IF has_table_privilege(caller, 'message_store.messages'::regclass, 'INSERT') THEN
    RAISE insufficient_privilege USING
      MESSAGE = format('The role %s may write without being a sender, and this write came from '
                       'another role', caller),
      HINT = 'Call the functions that write directly, as the role of the session.';
  END IF;

  SELECT coalesce(message_store.category(s.name), 'NULL') INTO refused
  FROM unnest(stream_names) WITH ORDINALITY AS s(name, n)
  WHERE message_store.category(s.name) IS NULL
     OR message_store.category(s.name) NOT IN (
          SELECT c.category FROM reservation.sender_categories c
          WHERE pg_has_role(caller, c.role, 'USAGE'))
  ORDER BY s.n
  LIMIT 1;
  IF FOUND THEN
    RAISE insufficient_privilege USING
      MESSAGE = format('The role %s may not write to the category %s', caller, refused),
      HINT = format('Let the owner of the store run `reservation store grants sender %s`, with '
                    '--category for each category that it may write to.', quote_ident(caller));
  END IF;
END
$$;

-- Refuses names that the clients of this package refuse, where they are taken from others: that of a stream
-- without an id, with control characters, or too long for an index. The limits are those of
-- reservation/messages/stream_name.py. Message DB's functions take what they always took.
CREATE OR REPLACE FUNCTION reservation.check_names(stream_names text[], types text[], metadata jsonb[])
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  refused record;
BEGIN
  SELECT i.stream_name, i.type,
         octet_length(split_part(i.stream_name, '-', 1)) AS bytes,
         octet_length(split_part(i.metadata->>'correlationStreamName', '-', 1)) AS correlation_bytes
  INTO refused
  FROM unnest(stream_names, types, metadata) AS i(stream_name, type, metadata)
  WHERE i.stream_name !~ '^[^-]+-.'
     OR i.stream_name ~ '[\u0001-\u001f\u007f-\u009f]'
     OR octet_length(i.stream_name) > 2600
     OR octet_length(i.type) > 2600
     OR octet_length(split_part(i.stream_name, '-', 1))
        + octet_length(split_part(i.metadata->>'correlationStreamName', '-', 1)) > 2600
  LIMIT 1;
  IF FOUND THEN
    RAISE check_violation USING MESSAGE = CASE
      WHEN octet_length(refused.stream_name) > 2600 THEN
        format('The stream name %L... is %s bytes long; the store takes 2600',
               left(refused.stream_name, 40), octet_length(refused.stream_name))
      WHEN octet_length(refused.type) > 2600 THEN
        format('The type %L... is %s bytes long; the store takes 2600',
               left(refused.type, 40), octet_length(refused.type))
      WHEN refused.bytes + refused.correlation_bytes > 2600 THEN
        format('The category of %L... and that of its metadata''s correlation stream are %s and %s bytes '
               'long; the store takes 2600 together',
               left(refused.stream_name, 40), refused.bytes, refused.correlation_bytes)
      WHEN refused.stream_name ~ '[\u0001-\u001f\u007f-\u009f]' THEN
        format('The stream name %L holds a control character', left(refused.stream_name, 40))
      ELSE format('%L names no stream, such as account-123', left(refused.stream_name, 40))
    END;
  END IF;
END
$$;

-- What a sender may not insert itself is inserted with the rights of the owner. If the owner may not either,
-- the functions would hand it on to each other for ever.
CREATE OR REPLACE FUNCTION reservation.check_owner_may_insert() RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF NOT reservation.may_insert() THEN
    RAISE insufficient_privilege USING
      MESSAGE = format('The role %s, with whose rights senders write, may not insert into '
                       'message_store.messages', current_user),
      HINT = 'Grant it what it lacks, or let the owner of the store own the schema reservation.';
  END IF;
END
$$;

CREATE OR REPLACE FUNCTION reservation.send_messages(
  ids uuid[],
  stream_names text[],
  types text[],
  data jsonb[],
  metadata jsonb[],
  expected_versions bigint[],
  OUT positions bigint[],
  OUT global_positions bigint[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  written record;
BEGIN
  PERFORM reservation.check_may_send(stream_names);
  PERFORM reservation.check_names(stream_names, types, metadata);
  PERFORM reservation.check_sizes(stream_names, data, metadata);
  PERFORM reservation.check_owner_may_insert();
  written := reservation.write_messages(ids, stream_names, types, data, metadata, expected_versions);
  positions := written.positions;
  global_positions := written.global_positions;
END
$$;
