-- Reading and reserving in one statement, where no code of the component is needed for any command. Nothing
-- of the commands leaves the server, and no lock waits for a client.

-- The positions of the next commands of a category, the stream that the key of each names, and whether all of
-- these are known and have no more than `longest_name` characters. All are NULL where there are no more commands.
CREATE OR REPLACE FUNCTION reservation.keys_of_next(
  category text, first bigint, batch_size bigint, rules jsonb, longest_name integer,
  OUT global_positions bigint[], OUT key_streams text[], OUT are_known boolean
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
BEGIN
  SELECT array_agg(m.global_position), array_agg(k.name),
         bool_and(coalesce(length(k.name) <= longest_name, false))
  INTO global_positions, key_streams, are_known
  FROM (
    SELECT m.*
    FROM message_store.messages m
    WHERE (message_store.category(m.stream_name), m.global_position)
          BETWEEN (keys_of_next.category, keys_of_next.first)
              AND (keys_of_next.category, 9223372036854775807)
    ORDER BY message_store.category(m.stream_name), m.global_position
    LIMIT keys_of_next.batch_size
  ) AS m
  LEFT JOIN LATERAL reservation.key_stream_of(
    keys_of_next.rules, m.type, m.data) AS k ON true;
END
$$;

-- Reads the next commands of a category as read_commands does, of all partitions. If the server has taken
-- the key of each and none is in conflict, reserves them and moves the positions past them; then there is one
-- row, with the position of the last of them, how many there are, and how many of them are duplicates. Else
-- nothing is written, each comes as read_commands returns it, and the caller decides. Fails where a position
-- does not move. A name of more than `longest_name` characters is for the caller to check.
--
-- Reads before it has the lock of a category. It may, because the position moves only if nobody else has
-- moved it, and commands are committed in the order of their positions.
CREATE OR REPLACE FUNCTION reservation.reserve_next(
  consumer text, category text, partitions integer[], epochs bigint[], after bigint,
  batch_size bigint, rules jsonb, ignoring jsonb, max_bytes bigint,
  longest_name integer, longest_pause text
) RETURNS TABLE (
  id varchar, stream_name varchar, type varchar, "position" bigint, global_position bigint,
  data varchar, metadata varchar, "time" timestamp, key_stream text, read bigint, duplicates bigint
)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
  next_ pg_catalog.record;
  in_conflict boolean;
BEGIN
  SELECT * INTO next_
  FROM reservation.keys_of_next(category, after OPERATOR(pg_catalog.+) 1, batch_size, rules, longest_name);

  IF next_.global_positions IS NULL THEN
    RETURN;
  END IF;

  IF next_.are_known THEN
    read := pg_catalog.cardinality(next_.global_positions);
    global_position := next_.global_positions[read];
    BEGIN
      -- See advance.
      PERFORM pg_catalog.set_config('idle_in_transaction_session_timeout', longest_pause, true);
      PERFORM reservation.move_positions(
        consumer, category, partitions, epochs, after, global_position, NULL, false);

      SELECT pg_catalog.count(*), pg_catalog.bool_or(r.outcome OPERATOR(pg_catalog.=) 'conflict')
      INTO duplicates, in_conflict
      FROM reservation.reserve(
        next_.global_positions, next_.key_streams, ignoring, NULL::pg_catalog.text[], NULL::pg_catalog.jsonb[]) AS r;
      IF in_conflict THEN
        RAISE EXCEPTION 'A command is in conflict with an earlier one' USING ERRCODE = 'RV003';
      END IF;
      RETURN NEXT;
      RETURN;
    EXCEPTION WHEN SQLSTATE 'RV003' THEN
      NULL;  -- what was written is undone
    END;
  END IF;

  RETURN QUERY
  SELECT c.*, NULL::bigint, NULL::bigint
  FROM reservation.read_commands(
    category, after OPERATOR(pg_catalog.+) 1, 9223372036854775807, batch_size, NULL, 1, NULL, rules, max_bytes) AS c;
END
$$;
