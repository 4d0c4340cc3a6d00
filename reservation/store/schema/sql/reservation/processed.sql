-- Messages that were processed, in sets.

-- Of these messages, those that are known, and those that were stored before what is kept begins. With
-- `of_their_day` a message is looked for among those that were stored when it was, else among all.
CREATE OR REPLACE FUNCTION reservation.find_processed(
  consumer text, types text[], keys text[], times timestamp[], of_their_day boolean
) RETURNS TABLE (ordinal bigint, known boolean, dropped_until timestamp)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT found.n, found.known, found.dropped_until
  FROM (
    SELECT i.n, i.time, h.dropped_until,
           EXISTS (
             SELECT FROM reservation.processed_messages m
             WHERE m.handler = h.handler AND m.key = i.key
               AND m.time BETWEEN CASE WHEN of_their_day THEN i.time ELSE '-infinity' END
                              AND CASE WHEN of_their_day THEN i.time ELSE 'infinity' END
           ) AS known
    FROM unnest(types, keys, times) WITH ORDINALITY AS i(type, key, "time", n)
    JOIN reservation.processed_handlers h
      ON h.consumer = find_processed.consumer AND h.type = i.type
    OFFSET 0
  ) AS found
  WHERE found.known OR found.time < found.dropped_until;
END
$$;

-- Makes the partition that a handler's messages of a day are kept in, if it is not there. Consumers
-- may own no tables, so it runs with the rights of the owner.
CREATE OR REPLACE FUNCTION reservation.make_processed_partition(handler integer, day date)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  first_day date;
  until date := day + 1;
  partition_name text;
BEGIN
  SELECT h.since INTO first_day FROM reservation.processed_handlers h
  WHERE h.handler = make_processed_partition.handler AND h.keep IS NOT NULL
  FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF first_day IS NULL THEN
    first_day := (clock_timestamp() AT TIME ZONE 'utc')::date;
    UPDATE reservation.processed_handlers h SET since = first_day
    WHERE h.handler = make_processed_partition.handler;
  END IF;
  until := greatest(until, first_day);
  partition_name := format('processed_%s_until_%s', handler, to_char(until, 'YYYYMMDD'));
  IF to_regclass('reservation.' || quote_ident(partition_name)) IS NOT NULL THEN
    RETURN false;
  END IF;
  -- Made first and attached then, which keeps nobody from reading and writing the others.
  EXECUTE format('CREATE TABLE reservation.%I (LIKE reservation.processed_for_a_time)', partition_name);
  EXECUTE format(
    'ALTER TABLE reservation.processed_for_a_time ATTACH PARTITION reservation.%I '
    'FOR VALUES FROM (%s, %s) TO (%s, %L)',
    partition_name, handler,
    CASE WHEN until = first_day THEN 'MINVALUE' ELSE quote_literal((until - 1)::text) END,
    handler, until::text);
  RETURN true;
END
$$;

-- Keeps messages as processed, under the lock of their handlers, and returns how many of them
-- nobody else had processed, or forgotten, meanwhile.
CREATE OR REPLACE FUNCTION reservation.record_processed(
  consumer text, keep interval, types text[], keys text[], times timestamp[], of_their_day boolean,
  global_positions bigint[]
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  recorded bigint;
BEGIN
  INSERT INTO reservation.processed_handlers (consumer, type, keep)
  SELECT DISTINCT record_processed.consumer, i.type, record_processed.keep
  FROM unnest(types) AS i(type)
  WHERE NOT EXISTS (
    SELECT FROM reservation.processed_handlers h
    WHERE h.consumer = record_processed.consumer AND h.type = i.type)
  ORDER BY 2
  ON CONFLICT DO NOTHING;

  PERFORM FROM reservation.processed_handlers h
  WHERE h.consumer = record_processed.consumer AND h.type = ANY (types)
  ORDER BY h.handler
  FOR NO KEY UPDATE;

  UPDATE reservation.processed_handlers h SET keep = record_processed.keep
  WHERE h.consumer = record_processed.consumer AND h.type = ANY (types)
    AND h.keep IS DISTINCT FROM record_processed.keep;

  IF record_processed.keep IS NOT NULL THEN
    PERFORM reservation.make_processed_partition(missing.handler, missing.day)
    FROM (
      SELECT DISTINCT h.handler, i.time::date AS day
      FROM unnest(types, times) AS i(type, "time")
      JOIN reservation.processed_handlers h
        ON h.consumer = record_processed.consumer AND h.type = i.type
      WHERE i.time >= coalesce(h.dropped_until, '-infinity')
    ) AS missing
    WHERE to_regclass(format('reservation.processed_%s_until_%s', missing.handler,
                             to_char(missing.day + 1, 'YYYYMMDD'))) IS NULL;
  END IF;

  INSERT INTO reservation.processed_messages (handler, key, time, global_position, for_ever)
  SELECT h.handler, i.key, i.time, i.global_position, record_processed.keep IS NULL
  FROM unnest(types, keys, times, global_positions) AS i(type, key, "time", global_position)
  JOIN reservation.processed_handlers h
    ON h.consumer = record_processed.consumer AND h.type = i.type
  WHERE i.time >= coalesce(h.dropped_until, '-infinity')
    AND NOT EXISTS (
      SELECT FROM reservation.processed_messages m
      WHERE m.handler = h.handler AND m.key = i.key
        AND m.time BETWEEN CASE WHEN of_their_day THEN i.time ELSE '-infinity' END
                       AND CASE WHEN of_their_day THEN i.time ELSE 'infinity' END
      OFFSET 0)  -- as a join it may look for the key alone, through the whole index
  ON CONFLICT DO NOTHING;
  GET DIAGNOSTICS recorded = ROW_COUNT;
  RETURN recorded;
END
$$;
