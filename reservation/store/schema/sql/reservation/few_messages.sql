-- What an idle consumer does with the few messages that wake it up, in fewer round trips: each of them
-- is in the way of the message.

-- Reads the next commands of a category as read_commands does, of all partitions. If there are no more
-- than `most`, and no code of the component is needed for any of them, reserves them and moves the
-- positions past them; then each comes with its outcome. Else the outcomes are NULL, and nothing is
-- written: the caller decides. Fails where a position does not move or a command is in conflict, for the
-- caller to find out which. A name of more than `longest_name` characters is for the caller to check.
--
-- Reads before it has the lock of a category. It may, because the position moves only if nobody else has
-- moved it, and commands are committed in the order of their positions.
CREATE OR REPLACE FUNCTION reservation.reserve_next(
  consumer text, category text, partitions integer[], epochs bigint[], after bigint,
  batch_size bigint, rules jsonb, volatile jsonb, max_bytes bigint,
  most integer, longest_name integer, longest_pause text
) RETURNS TABLE (
  id varchar, stream_name varchar, type varchar, "position" bigint, global_position bigint,
  data varchar, metadata varchar, "time" timestamp, key_stream text, outcome text
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  commands message_store.message[];
  numbers bigint[];
  names text[];
  outcomes text[];
  fit boolean;
  failed record;
BEGIN
  SELECT array_agg((c.id, c.stream_name, c.type, c.position, c.global_position, c.data, c.metadata,
                    c.time)::message_store.message),
         array_agg(c.global_position), array_agg(c.key_stream),
         count(*) <= most AND bool_and(length(c.key_stream) <= longest_name) IS TRUE
           AND count(c.key_stream) = count(*)
  INTO commands, numbers, names, fit
  FROM reservation.read_commands(
    category, after + 1, 9223372036854775807, batch_size, NULL, 1, NULL, rules, max_bytes) AS c;

  IF fit THEN
    -- See advance.
    PERFORM set_config('idle_in_transaction_session_timeout', longest_pause, true);
    IF NOT reservation.move_positions(
      consumer, category, partitions, epochs, after, numbers[cardinality(numbers)],
      (commands[cardinality(commands)]).id::uuid, false)
    THEN
      RAISE EXCEPTION 'A position has not moved';
    END IF;
    outcomes := array_fill('reserved'::text, ARRAY[cardinality(numbers)]);
    FOR failed IN SELECT r.ordinal, r.outcome FROM reservation.reserve(numbers, names, volatile) AS r
    LOOP
      IF failed.outcome = 'conflict' THEN
        RAISE EXCEPTION 'A command is in conflict with an earlier one';
      END IF;
      outcomes[failed.ordinal] := failed.outcome;
    END LOOP;
  END IF;

  RETURN QUERY
  SELECT c.id, c.stream_name, c.type, c.position, c.global_position, c.data, c.metadata, c.time,
         c.key_stream, c.outcome
  FROM unnest(commands, names, outcomes) AS c(
    id, stream_name, type, "position", global_position, data, metadata, "time", key_stream, outcome);
END
$$;

-- Reads a batch as read_part does, of a category whose streams are named by the ids of entities. If it has
-- no more than `most` messages, the last events of each entity follow them, up to `latest` and to
-- `latest_bytes` as they are stored, in their order. `entity_stream` is the stream of a message's entity;
-- with an event it is the event's own. A row without an id says that the last event is larger.
CREATE OR REPLACE FUNCTION reservation.read_with_entities(
  category text, first bigint, last bigint, batch_size bigint,
  partitions integer[], size integer, carried bigint[], max_bytes bigint,
  component text, most integer, latest integer, latest_bytes bigint
) RETURNS TABLE (
  id varchar, stream_name varchar, type varchar, "position" bigint, global_position bigint,
  data varchar, metadata varchar, "time" timestamp, entity_stream text
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET row_security = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
AS $$
#variable_conflict use_column
DECLARE
  streams text[] := '{}';
BEGIN
  FOR id, stream_name, type, "position", global_position, data, metadata, "time", entity_stream IN
    SELECT m.id, m.stream_name, m.type, m.position, m.global_position, m.data, m.metadata, m.time,
           component || '-'
           || split_part(substr(m.stream_name, strpos(m.stream_name, '-') + 1), '+', 1)
    FROM reservation.read_part(
      category, first, last, batch_size, partitions, size, carried, max_bytes) AS m
  LOOP
    RETURN NEXT;
    streams := streams || read_with_entities.entity_stream;
  END LOOP;

  IF cardinality(streams) <= most THEN
    RETURN QUERY
    SELECT CASE WHEN e.bytes <= latest_bytes THEN e.id::varchar END, e.stream_name::varchar,
           e.type::varchar, e.position, e.global_position,
           CASE WHEN e.bytes <= latest_bytes THEN e.data::varchar END,
           CASE WHEN e.bytes <= latest_bytes THEN e.metadata::varchar END,
           e.time, s.stream_name
    FROM (SELECT DISTINCT unnest(streams) AS stream_name) AS s
    CROSS JOIN LATERAL (
      SELECT m.*, row_number() OVER newest AS nth,
             sum(coalesce(pg_column_size(m.data), 0) + coalesce(pg_column_size(m.metadata), 0))
               OVER newest AS bytes
      FROM (
        SELECT m.* FROM message_store.messages m
        WHERE m.stream_name = s.stream_name
        ORDER BY m.position DESC
        LIMIT latest
      ) AS m
      WINDOW newest AS (ORDER BY m.position DESC)
    ) AS e
    WHERE e.bytes <= latest_bytes OR e.nth = 1
    ORDER BY s.stream_name, e.position;
  END IF;
END
$$;
