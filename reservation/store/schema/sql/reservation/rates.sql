-- Rates: how often a handler is called at most, by the server's clock, over all processes.
--
-- A rate allows a call each `seconds`, and up to `burst` at once after a while without (GCRA). Calls are taken by
-- statements that are committed by themselves, so a call that was made counts even if its batch is rolled back. What
-- has to wait is a letter with the name of its rate and a time of its own. These letters are a queue, whose end is
-- looked up among them. So nothing has to be brought in step with letters that are discarded, or with a batch that is
-- not committed.

-- The time of the last letter that waits for a rate, NULL if all are due. The rate is a range, and orders the letters
-- too, so that only the index of the letters of rates gives that order: by another one all that waits would be read.
CREATE OR REPLACE FUNCTION reservation.last_limited(consumer text, category text, rate text) RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  last timestamptz := (
    SELECT l.next_attempt_at
    FROM reservation.dead_letters l
    WHERE l.consumer = last_limited.consumer AND l.category = last_limited.category
      AND l.rate BETWEEN last_limited.rate AND last_limited.rate AND l.state = 'waiting'
    ORDER BY l.rate DESC, l.next_attempt_at DESC
    LIMIT 1);
BEGIN
  RETURN CASE WHEN last > clock_timestamp() THEN last END;
END
$$;

-- Takes up to so many calls of a rate, whose times come within `horizon` seconds. Returns how many; in how many
-- seconds the first may be made, each next one `seconds` later (below 0: now); and in how many the next one that
-- is not taken. For messages that have not waited for the rate (`is_new`) none is taken while letters wait.
CREATE OR REPLACE FUNCTION reservation.take_calls(
  consumer text, category text, rate text, seconds float8, burst integer, calls integer, horizon float8,
  is_new boolean, OUT taken integer, OUT first_in float8, OUT next_in float8
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  last timestamptz;
  known timestamptz;
  at timestamptz;
BEGIN
  IF is_new THEN
    last := reservation.last_limited(take_calls.consumer, take_calls.category, take_calls.rate);
    IF last IS NOT NULL THEN
      taken := 0;
      next_in := greatest(extract(epoch FROM last - clock_timestamp())::float8 + seconds, 0);
      RETURN;
    END IF;
  END IF;

  PERFORM pg_advisory_xact_lock(hashtextextended(
    format('reservation.rates %s %s %s', take_calls.consumer, take_calls.category, take_calls.rate), 0));
  SELECT r.made_up_at INTO known
  FROM reservation.rates r
  WHERE r.consumer = take_calls.consumer AND r.category = take_calls.category AND r.rate = take_calls.rate
  ORDER BY r.made_up_at DESC
  LIMIT 1;
  at := clock_timestamp();
  first_in := greatest(extract(epoch FROM known - at)::float8, 0) - (burst - 1) * seconds;
  taken := greatest(least(calls, floor((horizon - first_in) / seconds) + 1), 0);
  next_in := greatest(first_in + taken * seconds, 0);
  IF taken > 0 THEN
    DELETE FROM reservation.rates r
    WHERE r.consumer = take_calls.consumer AND r.category = take_calls.category AND r.rate = take_calls.rate
      AND r.made_up_at = known;
    INSERT INTO reservation.rates (consumer, category, rate, made_up_at)
    VALUES (take_calls.consumer, take_calls.category, take_calls.rate,
            greatest(known, at) + make_interval(secs => taken * seconds));
  END IF;
END
$$;

-- The times of letters that have to wait for rates (NULL for others), which follow those that wait already. Of those
-- that have waited, the first of a rate gets the time of its next call: it was only looked at too late or too early. The
-- lock is held until the transaction ends, so that no time of a queue is given twice.
CREATE OR REPLACE FUNCTION reservation.rate_times(
  consumer text, category text, global_positions bigint[], rates text[], waits float8[], seconds float8[],
  have_waited boolean[]
) RETURNS TABLE (global_position bigint, at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  now timestamptz;
BEGIN
  IF array_remove(rates, NULL) = '{}' THEN
    RETURN;
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended(
    format('reservation.rate_times %s %s', rate_times.consumer, rate_times.category), 0));
  now := clock_timestamp();
  RETURN QUERY
  WITH given AS MATERIALIZED (
    SELECT g.global_position, g.rate, g.wait, g.seconds,
           row_number() OVER (PARTITION BY g.rate ORDER BY NOT g.has_waited, g.global_position) - 1 AS n,
           (bool_or(g.has_waited) OVER (PARTITION BY g.rate))::integer AS first
    FROM unnest(global_positions, rates, waits, rate_times.seconds, have_waited)
         AS g (global_position, rate, wait, seconds, has_waited)
    WHERE g.rate IS NOT NULL
  ), queues AS MATERIALIZED (
    SELECT r.rate, reservation.last_limited(rate_times.consumer, rate_times.category, r.rate) AS last
    FROM (SELECT DISTINCT g.rate FROM given g) AS r
  )
  SELECT g.global_position,
         CASE WHEN g.n < g.first OR q.last IS NULL THEN now + make_interval(secs => g.wait + g.n * g.seconds)
              ELSE greatest(now + make_interval(secs => g.wait + g.first * g.seconds),
                            q.last + make_interval(secs => g.seconds))
                   + make_interval(secs => (g.n - g.first) * g.seconds) END
  FROM given g
  JOIN queues q ON q.rate = g.rate;
END
$$;

-- Removes what stands for calls that are all made up for, and so says nothing any more.
CREATE OR REPLACE FUNCTION reservation.forget_rates(consumer text, category text) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
  DELETE FROM reservation.rates r
  WHERE r.consumer = forget_rates.consumer AND r.category = forget_rates.category
    AND r.made_up_at < clock_timestamp()
$$;
