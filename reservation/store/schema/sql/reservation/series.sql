-- Series: recurring commands, one for each tick. The processes of the component know when the ticks are; here is
-- up to which of them all is done, by the server's clock.
--
-- A process claims a tick, calls the component's function for its command, and sends that: it moves the series on
-- from where it was and schedules the command, in one statement and one commit. If the series is not there any
-- more, somebody else has sent the tick. So it is sent once, however many processes call the function; the claim
-- only keeps them from doing so at once, and counts attempts. What was scheduled is written as any other message.

-- Takes a component's series as a process declares them: adds new ones, which begin now, and changes those that
-- are there. The process that started last decides, so a process that is about to be replaced changes nothing, and
-- gets no row of a series that the newer one has otherwise or not at all.
--
-- One that was stopped begins now too: its ticks may have been sent under another name. It goes on from where it was
-- if it was stopped less than a minute ago, as by an older process that was the first to connect again.
CREATE OR REPLACE FUNCTION reservation.declare_series(
  component text, names text[], expressions text[], zones text[], missed text[]
) RETURNS TABLE (
  name text, at timestamptz, reached timestamptz, attempted timestamptz, attempts integer, attempt_at timestamptz
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  newest jsonb := reservation.newest_series(declare_series.component);
BEGIN
  IF EXISTS (
    SELECT FROM unnest(names, expressions, zones, missed) AS d(name, expression, zone, missed)
    LEFT JOIN reservation.series s ON s.component = declare_series.component AND s.name = d.name
    WHERE (s.expression, s.zone, s.missed, s.stopped_at)
          IS DISTINCT FROM (d.expression, d.zone, d.missed, NULL::timestamptz)
  ) THEN
    INSERT INTO reservation.series AS s (component, name, expression, zone, missed, reached)
    SELECT declare_series.component, d.name, d.expression, d.zone, d.missed, clock_timestamp()
    FROM unnest(names, expressions, zones, missed) AS d(name, expression, zone, missed)
    WHERE newest IS NULL OR newest->d.name = jsonb_build_array(d.expression, d.zone, d.missed)
    ORDER BY d.name
    ON CONFLICT ON CONSTRAINT series_pkey DO UPDATE
    SET expression = excluded.expression, zone = excluded.zone, missed = excluded.missed, stopped_at = NULL,
        reached = CASE WHEN (s.expression, s.zone) = (excluded.expression, excluded.zone)
                            AND (s.stopped_at IS NULL OR s.stopped_at > clock_timestamp() - interval '1 minute')
                       THEN s.reached
                       ELSE greatest(s.reached, clock_timestamp()) END
    WHERE (s.expression, s.zone, s.missed, s.stopped_at)
          IS DISTINCT FROM (excluded.expression, excluded.zone, excluded.missed, NULL::timestamptz);
  END IF;
  RETURN QUERY
  SELECT s.name, clock_timestamp(), s.reached, s.attempted, s.attempts, s.attempt_at
  FROM unnest(names, expressions, zones, missed) AS d(name, expression, zone, missed)
  JOIN reservation.series s ON s.component = declare_series.component AND s.name = d.name
  WHERE (s.expression, s.zone, s.missed) = (d.expression, d.zone, d.missed) AND s.stopped_at IS NULL;
END
$$;

-- The series that the process declares that started last of those that read a component's commands; NULL without one.
CREATE OR REPLACE FUNCTION reservation.newest_series(component text) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT coalesce(m.declaration->'series', '{}')
  FROM reservation.members m
  WHERE m.consumer = newest_series.component AND m.category = newest_series.component || ':command'
    AND m.declaration IS NOT NULL AND NOT reservation.is_gone(m.member)
  ORDER BY m.first_member DESC, m.member DESC
  LIMIT 1
$$;

-- Stops the series of a component that its newest process does not declare any more, and returns their names.
CREATE OR REPLACE FUNCTION reservation.stop_series(component text) RETURNS text[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  newest jsonb := reservation.newest_series(stop_series.component);
  stopped text[];
BEGIN
  WITH gone AS (
    UPDATE reservation.series s SET stopped_at = clock_timestamp()
    WHERE s.component = stop_series.component AND s.stopped_at IS NULL AND NOT newest ? s.name
    RETURNING s.name
  )
  SELECT array_agg(g.name ORDER BY g.name) INTO stopped FROM gone AS g;
  RETURN coalesce(stopped, '{}');
END
$$;

-- Begins an attempt to send a tick of a series that is still where it was. Returns how many attempts there were
-- with this one, 0 if the tick is given up after as many as a scheduled message has, and NULL if another process
-- has the tick. The next attempt is a second later, then two, and so on up to a minute. It is made if this one
-- fails, and if the process dies in it.
CREATE OR REPLACE FUNCTION reservation.claim_tick(
  component text, name text, reached timestamptz, tick timestamptz
) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  claimed integer;
BEGIN
  UPDATE reservation.series s
  SET attempted = claim_tick.tick,
      attempts = CASE WHEN s.attempted = claim_tick.tick THEN s.attempts + 1 ELSE 1 END,
      attempt_at = clock_timestamp() + make_interval(
        secs => least(60, 2 ^ CASE WHEN s.attempted = claim_tick.tick THEN least(s.attempts, 6) ELSE 0 END)),
      given_up = s.given_up + coalesce((s.attempted < claim_tick.tick)::integer, 0)
  WHERE (s.component, s.name) = (claim_tick.component, claim_tick.name) AND s.reached = claim_tick.reached
    AND s.stopped_at IS NULL
    AND (s.attempted IS NULL OR s.attempted < claim_tick.tick
         OR s.attempted = claim_tick.tick AND s.attempt_at <= clock_timestamp())
  RETURNING s.attempts INTO claimed;
  IF claimed > 60 THEN
    UPDATE reservation.series s
    SET reached = claim_tick.tick, given_up = s.given_up + 1, attempted = NULL, attempts = 0, attempt_at = NULL
    WHERE (s.component, s.name) = (claim_tick.component, claim_tick.name);
    RETURN 0;
  END IF;
  RETURN claimed;
END
$$;

-- Moves a series on to a tick from where it was, and schedules the tick's command if it has one; false if the
-- series is somewhere else. Without `is_tick` the tick is passed because it was missed.
CREATE OR REPLACE FUNCTION reservation.send_tick(
  component text, name text, reached timestamptz, tick timestamptz, is_tick boolean,
  id uuid, stream_name text, type text, data jsonb, metadata jsonb
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  UPDATE reservation.series s
  SET reached = send_tick.tick, last_tick = CASE WHEN is_tick THEN send_tick.tick ELSE s.last_tick END,
      given_up = s.given_up + coalesce((s.attempted < send_tick.tick)::integer, 0),
      attempted = NULL, attempts = 0, attempt_at = NULL,
      error = CASE WHEN is_tick THEN NULL ELSE s.error END
  WHERE (s.component, s.name) = (send_tick.component, send_tick.name) AND s.reached = send_tick.reached
    AND s.stopped_at IS NULL;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF send_tick.id IS NOT NULL THEN
    PERFORM reservation.schedule_messages(
      ARRAY[send_tick.id], ARRAY[send_tick.stream_name], ARRAY[send_tick.type], ARRAY[send_tick.data],
      ARRAY[send_tick.metadata], ARRAY[send_tick.tick]);
  END IF;
  RETURN true;
END
$$;

-- Notes why an attempt failed, unless the tick was sent meanwhile.
CREATE OR REPLACE FUNCTION reservation.fail_tick(
  component text, name text, reached timestamptz, tick timestamptz, error text
) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
  UPDATE reservation.series s SET error = left(fail_tick.error, 300)
  WHERE (s.component, s.name, s.reached, s.attempted)
        = (fail_tick.component, fail_tick.name, fail_tick.reached, fail_tick.tick)
$$;
