-- Snapshots of entities in sets, by their streams.

-- Those that the code of a revision may use. One is left out if the event that it ends with is not in
-- its stream: it was taken in another log.
CREATE OR REPLACE FUNCTION reservation.read_snapshots(stream_names text[], revision text)
RETURNS TABLE (stream_name text, "position" bigint, data text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    SELECT s.stream_name, s.position, s.data::text
    FROM unnest(stream_names) AS wanted(stream_name)
    JOIN reservation.snapshots s
      ON s.stream_name = wanted.stream_name AND s.revision = read_snapshots.revision
    CROSS JOIN LATERAL (
      SELECT FROM message_store.messages m
      WHERE m.stream_name = s.stream_name AND m.position = s.position AND m.id = s.event_id
      LIMIT 1
    ) AS reached;
END
$$;

-- In one sorted order, so that two batches do not wait for each other in a circle. Each names the event
-- that it ends with, which is in its stream by now. Of two snapshots by the same code the one that has
-- more in it stays, unless it was taken in another log.
CREATE OR REPLACE FUNCTION reservation.write_snapshots(
  stream_names text[], positions bigint[], revision text, data jsonb[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO reservation.snapshots AS s (stream_name, position, revision, data, event_id)
  SELECT i.stream_name, i.position, write_snapshots.revision, i.data, m.id
  FROM unnest(stream_names, positions, data) AS i(stream_name, "position", data)
  JOIN message_store.messages m ON m.stream_name = i.stream_name AND m.position = i.position
  ORDER BY i.stream_name COLLATE "C"
  ON CONFLICT (stream_name) DO UPDATE
  SET position = excluded.position, revision = excluded.revision, data = excluded.data,
      event_id = excluded.event_id, updated_at = now()
  WHERE s.position < excluded.position OR s.revision <> excluded.revision OR NOT EXISTS (
    SELECT FROM message_store.messages e
    WHERE e.stream_name = s.stream_name AND e.position = s.position AND e.id = s.event_id);
END
$$;
