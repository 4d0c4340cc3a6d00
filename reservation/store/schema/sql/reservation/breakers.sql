-- Breakers: while a handler's provider is down, the handler's messages wait instead of failing.
--
-- A process reports each failure of the provider before it calls the handler again, in a transaction of its own, so
-- the count is that of all processes. Once there were enough the breaker is open, until a time: its messages are
-- letters in state waiting, which are not due before. Then a process claims the one attempt, the probe: the breaker is
-- half-open, until a time again, after which somebody else may claim it, because the process may have died. A probe
-- that succeeds closes the breaker, and any other outcome opens it again.

-- The breakers of a category: the types that the handler's messages are stored under, of which the first names it; the
-- seconds until a probe may be claimed, NULL if it is closed; whether there is one; and whether a success of the
-- handler is worth a report. One that is not there is closed.
CREATE OR REPLACE FUNCTION reservation.breaker_states(consumer text, category text)
RETURNS TABLE (type text, types text[], wait float8, is_probing boolean, awaits_success boolean)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT b.type, b.types, extract(epoch FROM b.until - clock_timestamp())::float8, b.is_probing,
         coalesce(b.failed_at[cardinality(b.failed_at)] > b.succeeded_at, b.failed_at <> '{}')
  FROM reservation.breakers b
  WHERE (b.consumer, b.category) = (breaker_states.consumer, breaker_states.category)
$$;

-- Adds the breakers that a process declares, each a text array of types as JSON, and removes those of handlers that
-- have none any more.
CREATE OR REPLACE FUNCTION reservation.declare_breakers(consumer text, category text, declared jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  DELETE FROM reservation.breakers b
  WHERE (b.consumer, b.category) = (declare_breakers.consumer, declare_breakers.category)
    AND NOT EXISTS (SELECT FROM jsonb_array_elements(declared) AS d(types) WHERE d.types->>0 = b.type);
  INSERT INTO reservation.breakers AS b (consumer, category, type, types)
  SELECT declare_breakers.consumer, declare_breakers.category, d.types->>0,
         ARRAY(SELECT jsonb_array_elements_text(d.types))
  FROM jsonb_array_elements(declared) AS d(types)
  ORDER BY d.types->>0
  ON CONFLICT ON CONSTRAINT breakers_pkey DO UPDATE SET types = excluded.types
  WHERE b.types <> excluded.types;
END
$$;

-- Claims the probe for a time; returns whether that succeeded, and the state.
CREATE OR REPLACE FUNCTION reservation.claim_probe(consumer text, category text, type text, open_for interval)
RETURNS TABLE (claimed boolean, wait float8, is_probing boolean, awaits_success boolean)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  UPDATE reservation.breakers b
  SET until = clock_timestamp() + open_for, is_probing = true
  WHERE (b.consumer, b.category, b.type) = (claim_probe.consumer, claim_probe.category, claim_probe.type)
    AND b.until <= clock_timestamp();
  claimed := FOUND;
  SELECT s.wait, s.is_probing, s.awaits_success
  INTO claim_probe.wait, claim_probe.is_probing, claim_probe.awaits_success
  FROM reservation.breaker_states(claim_probe.consumer, claim_probe.category) AS s
  WHERE s.type = claim_probe.type;
  RETURN NEXT;
END
$$;

-- Counts a failure of the provider. Returns the seconds until a probe may be claimed, NULL if the breaker is closed;
-- whether there is one; whether it was this failure that opened the breaker; and whether the handler had succeeded
-- since the failure before, so that the message alone may be at fault.
CREATE OR REPLACE FUNCTION reservation.breaker_failed(
  consumer text, category text, types text[], failures integer, within interval, open_for interval, error_type text,
  is_probe boolean
) RETURNS TABLE (wait float8, is_probing boolean, has_opened boolean, is_alone boolean)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  known record;
  at timestamptz;
  failed timestamptz[];
BEGIN
  INSERT INTO reservation.breakers (consumer, category, type, types)
  VALUES (breaker_failed.consumer, breaker_failed.category, breaker_failed.types[1], breaker_failed.types)
  ON CONFLICT ON CONSTRAINT breakers_pkey DO NOTHING;
  SELECT b.* INTO known FROM reservation.breakers b
  WHERE (b.consumer, b.category, b.type)
        = (breaker_failed.consumer, breaker_failed.category, breaker_failed.types[1])
  FOR UPDATE;
  at := clock_timestamp();  -- after the failures of others, for which the lock was waited for
  is_alone := coalesce(known.succeeded_at > known.failed_at[cardinality(known.failed_at)],
                       known.succeeded_at IS NOT NULL);
  failed := known.failed_at || at;
  failed := failed[greatest(1, cardinality(failed) - failures + 1):];
  has_opened := known.until IS NULL AND cardinality(failed) = failures AND failed[1] >= at - within;
  IF has_opened OR (is_probe AND known.until IS NOT NULL) THEN
    known.until := at + open_for;
    known.is_probing := false;
    known.error_type := breaker_failed.error_type;
  END IF;
  UPDATE reservation.breakers b
  SET failed_at = failed, until = known.until, is_probing = known.is_probing, error_type = known.error_type,
      opened_at = CASE WHEN has_opened THEN at ELSE b.opened_at END
  WHERE (b.consumer, b.category, b.type)
        = (breaker_failed.consumer, breaker_failed.category, breaker_failed.types[1]);
  wait := extract(epoch FROM known.until - at);
  is_probing := known.is_probing;
  RETURN NEXT;
END
$$;

-- Notes that the handler has succeeded. A probe closes the breaker, and gets the seconds that it was open for; NULL if
-- it was not.
CREATE OR REPLACE FUNCTION reservation.breaker_succeeded(consumer text, category text, type text, is_probe boolean)
RETURNS float8
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  opened timestamptz;
BEGIN
  SELECT b.opened_at INTO opened FROM reservation.breakers b
  WHERE (b.consumer, b.category, b.type)
        = (breaker_succeeded.consumer, breaker_succeeded.category, breaker_succeeded.type)
  FOR UPDATE;
  IF is_probe AND opened IS NOT NULL THEN
    UPDATE reservation.breakers b
    SET succeeded_at = clock_timestamp(), failed_at = '{}', opened_at = NULL, until = NULL, is_probing = false,
        error_type = NULL
    WHERE (b.consumer, b.category, b.type)
          = (breaker_succeeded.consumer, breaker_succeeded.category, breaker_succeeded.type);
    RETURN extract(epoch FROM clock_timestamp() - opened);
  END IF;
  UPDATE reservation.breakers b
  SET succeeded_at = clock_timestamp()
  WHERE (b.consumer, b.category, b.type)
        = (breaker_succeeded.consumer, breaker_succeeded.category, breaker_succeeded.type);
  RETURN NULL;
END
$$;

-- Opens the breaker again for a time, because its probe has ended without an answer of the provider.
CREATE OR REPLACE FUNCTION reservation.probe_ended(consumer text, category text, type text, open_for interval)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
  UPDATE reservation.breakers b
  SET until = clock_timestamp() + open_for, is_probing = false
  WHERE (b.consumer, b.category, b.type) = (probe_ended.consumer, probe_ended.category, probe_ended.type)
    AND b.until IS NOT NULL
$$;
