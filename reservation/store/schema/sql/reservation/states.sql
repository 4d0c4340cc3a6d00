-- Which versions of states are no longer needed.

-- For so many streams, from `first` on and before `bound`: the position below which every version may
-- be removed. A version is needed while its message may come again (it is not older than the cutoff)
-- and while it is the newest; and with it the state before it, and what that one builds on.
CREATE OR REPLACE FUNCTION reservation.state_cuts(
  first text, bound text, cutoff timestamptz, streams bigint
) RETURNS TABLE (stream_name text, "position" bigint)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  WITH RECURSIVE names AS (
    (SELECT s.stream_name, 1 AS n
     FROM reservation.states s
     WHERE s.stream_name >= state_cuts.first AND s.stream_name < state_cuts.bound
     ORDER BY s.stream_name LIMIT 1)
    UNION ALL
    SELECT following.stream_name, names.n + 1
    FROM names
    CROSS JOIN LATERAL (
      SELECT s.stream_name
      FROM reservation.states s
      WHERE s.stream_name > names.stream_name AND s.stream_name < state_cuts.bound
      ORDER BY s.stream_name LIMIT 1
    ) AS following
    WHERE names.n < state_cuts.streams
  )
  SELECT names.stream_name,
         CASE WHEN needed.position IS NULL THEN newest.base
              ELSE coalesce(before.base, needed.position) END
  FROM names
  CROSS JOIN LATERAL (
    SELECT s.base FROM reservation.states s
    WHERE s.stream_name = names.stream_name
    ORDER BY s.position DESC LIMIT 1
  ) AS newest
  LEFT JOIN LATERAL (
    SELECT s.position FROM reservation.states s
    WHERE s.stream_name = names.stream_name AND s.time >= state_cuts.cutoff
    ORDER BY s.position LIMIT 1
  ) AS needed ON true
  LEFT JOIN LATERAL (
    SELECT s.base FROM reservation.states s
    WHERE s.stream_name = names.stream_name AND s.position = needed.position - 1
    LIMIT 1  -- so that it is looked up for each, and not joined with all there is
  ) AS before ON true
$$;
