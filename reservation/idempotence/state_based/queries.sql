-- name: look
SELECT newest, expired, known, given, outputs, base, states
FROM reservation.look_at_states(%s, %s)

-- name: append
-- In one sorted order, so that two batches do not wait for each other in a circle.
INSERT INTO reservation.states (
  stream_name, position, message_id, category, global_position, base, state, given, outputs)
SELECT i.stream_name, i.position, i.message_id, i.category, i.global_position, i.base,
       i.state::json, i.given::json, i.outputs::json
FROM unnest(
  %(streams)s::text[], %(positions)s::bigint[], %(messages)s::uuid[], %(categories)s::text[],
  %(global_positions)s::bigint[], %(bases)s::bigint[], %(states)s::text[], %(given)s::text[],
  %(outputs)s::text[]
) AS i(stream_name, position, message_id, category, global_position, base, state, given, outputs)
ORDER BY i.stream_name COLLATE "C", i.position

-- name: lock_clean_up
SELECT pg_try_advisory_xact_lock(message_store.hash_64(%s))

-- name: clean_up
-- What goes is found again by where it is stored: by its key the planner may look for it in all there
-- is. Nothing changes it meanwhile, and only one process cleans up at a time.
WITH cuts AS MATERIALIZED (
  SELECT stream_name, position
  FROM reservation.state_cuts(
    %(first)s, %(bound)s, now() - make_interval(secs => %(seconds)s), %(streams)s)
), old AS MATERIALIZED (
  SELECT s.stream_name, s.place
  FROM cuts
  CROSS JOIN LATERAL (
    SELECT s.stream_name, s.position, s.ctid AS place FROM reservation.states s
    WHERE s.stream_name = cuts.stream_name AND s.position < cuts.position
    ORDER BY s.position LIMIT %(versions)s
  ) AS s
  ORDER BY s.stream_name, s.position
  LIMIT %(versions)s
), removed AS (
  DELETE FROM reservation.states AS s
  WHERE s.ctid = ANY (ARRAY(SELECT place FROM old))
  RETURNING s.stream_name, s.category, s.global_position
), noted AS (
  INSERT INTO reservation.state_horizons AS h (stream_name, expired)
  SELECT stream_name, jsonb_object_agg(category, position)
  FROM (
    SELECT stream_name, category, max(global_position) AS position
    FROM removed GROUP BY stream_name, category
  ) AS highest
  GROUP BY stream_name
  ON CONFLICT (stream_name) DO UPDATE SET expired = (
    SELECT jsonb_object_agg(key, position)
    FROM (
      SELECT key, max(value::bigint) AS position
      FROM (
        SELECT key, value FROM jsonb_each_text(h.expired)
        UNION ALL
        SELECT key, value FROM jsonb_each_text(excluded.expired)
      ) AS both_of_them
      GROUP BY key
    ) AS highest)
)
SELECT (SELECT count(*) FROM removed), (SELECT max(stream_name) FROM old),
       (SELECT count(*) FROM cuts), (SELECT max(stream_name) FROM cuts)

-- name: count_removable
SELECT count(*)
FROM reservation.state_cuts(
  %(first)s, %(bound)s, now() - make_interval(secs => %(seconds)s), %(streams)s) AS cuts
JOIN reservation.states s ON s.stream_name = cuts.stream_name AND s.position < cuts.position
