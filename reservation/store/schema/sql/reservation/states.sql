-- The versions of states: what is stored for messages, and which versions are no longer needed.

-- For each message its version, if it has one; for its stream the newest version and what was removed; and
-- the state before it: the version that it is built on and all that follow, up to the one before the
-- message's own, or else up to the newest. There is no base if some of them are missing. A state that
-- several messages need comes with the first of them.
CREATE OR REPLACE FUNCTION reservation.look_at_states(stream_names text[], message_ids uuid[])
RETURNS TABLE (
  newest bigint, expired text, known bigint, given text, outputs text, base bigint, states text[])
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT f.newest, f.expired, f.known, f.given, f.outputs,
         CASE WHEN cardinality(before.states) = f.wanted - before.base + 1 THEN before.base END,
         before.states
  FROM (
    SELECT i.stream_name, i.n, newest.position AS newest, horizon.expired::text AS expired,
           found.position AS known, found.given::text AS given, found.outputs::text AS outputs,
           coalesce(found.position - 1, newest.position) AS wanted,
           row_number() OVER (
             PARTITION BY i.stream_name, coalesce(found.position - 1, newest.position) ORDER BY i.n
           ) AS occurrence
    FROM unnest(stream_names, message_ids) WITH ORDINALITY AS i(stream_name, message_id, n)
    LEFT JOIN LATERAL (
      SELECT s.position, s.given, s.outputs FROM reservation.states s
      WHERE s.message_id = i.message_id AND s.stream_name = i.stream_name
      LIMIT 1
    ) AS found ON true
    LEFT JOIN LATERAL (
      SELECT s.position FROM reservation.states s
      WHERE s.stream_name = i.stream_name
      ORDER BY s.position DESC LIMIT 1
    ) AS newest ON true
    LEFT JOIN LATERAL (
      SELECT h.expired FROM reservation.state_horizons h
      WHERE h.stream_name = i.stream_name
      LIMIT 1
    ) AS horizon ON true
  ) AS f
  LEFT JOIN LATERAL (
    SELECT s.base, ARRAY(
      SELECT built.state::text FROM reservation.states built
      WHERE built.stream_name = f.stream_name AND built.position BETWEEN s.base AND f.wanted
      ORDER BY built.position
    ) AS states
    FROM reservation.states s
    WHERE f.occurrence = 1 AND s.stream_name = f.stream_name AND s.position = f.wanted
    LIMIT 1
  ) AS before ON true
  ORDER BY f.n;
END
$$;

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
