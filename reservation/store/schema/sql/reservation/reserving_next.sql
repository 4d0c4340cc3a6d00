-- Reading and reserving in one statement, where no code of the component is needed for any command. Nothing
-- of the commands leaves the server, and no lock waits for a client.

-- Reads the next commands of a category as read_commands does, of all partitions. If the server has taken
-- the key of each, reserves them and moves the positions past them; then there is one row, with the position
-- of the last of them, how many there are, and how many of them are duplicates. Else nothing is written, each
-- comes as read_commands returns it, and the caller decides. Fails where a position does not move or a
-- command is in conflict, for the caller to find out which. A name of more than `longest_name` characters is
-- for the caller to check.
--
-- Reads before it has the lock of a category. It may, because the position moves only if nobody else has
-- moved it, and commands are committed in the order of their positions.
CREATE OR REPLACE FUNCTION reservation.reserve_next(
  consumer text, category text, partitions integer[], epochs bigint[], after bigint,
  batch_size bigint, rules jsonb, volatile jsonb, max_bytes bigint,
  longest_name integer, longest_pause text
) RETURNS TABLE (
  id varchar, stream_name varchar, type varchar, "position" bigint, global_position bigint,
  data varchar, metadata varchar, "time" timestamp, key_stream text, read bigint, duplicates bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET row_security = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_memoize = off
SET max_parallel_workers_per_gather = 0
AS $$
#variable_conflict use_column
DECLARE
  numbers bigint[];
  names text[];
  fit boolean;
  in_conflict boolean;
BEGIN
  SELECT array_agg(c.global_position), array_agg(c.key_stream),
         bool_and(coalesce(length(c.key_stream) <= longest_name, false))
  INTO numbers, names, fit
  FROM reservation.next_commands(
    category, after + 1, 9223372036854775807, batch_size, NULL, 1, NULL, rules) AS c;

  IF numbers IS NULL THEN
    RETURN;
  ELSIF NOT fit THEN
    RETURN QUERY
    SELECT c.*, NULL::bigint, NULL::bigint
    FROM reservation.read_commands(
      category, after + 1, 9223372036854775807, batch_size, NULL, 1, NULL, rules, max_bytes) AS c;
    RETURN;
  END IF;

  global_position := numbers[cardinality(numbers)];
  read := cardinality(numbers);
  -- See advance.
  PERFORM set_config('idle_in_transaction_session_timeout', longest_pause, true);
  IF NOT reservation.move_positions(
    consumer, category, partitions, epochs, after, global_position, NULL, false)
  THEN
    RAISE EXCEPTION 'A position has not moved';
  END IF;

  SELECT count(*), bool_or(r.outcome = 'conflict')
  INTO duplicates, in_conflict
  FROM reservation.reserve(numbers, names, volatile) AS r;
  IF in_conflict THEN
    RAISE EXCEPTION 'A command is in conflict with an earlier one';
  END IF;
  RETURN NEXT;
END
$$;
