-- What the events of entities say of the messages that caused them.

-- Of each stream the events stored after a global position, read backwards from its end, so that a
-- long stream is not read whole: the cause of an event was stored before it.
CREATE OR REPLACE FUNCTION reservation.newer_causes(stream_names text[], after bigint[])
RETURNS TABLE (stream_name text, message_id text, source text, sequence bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH RECURSIVE newer AS (
    SELECT a.stream_name, a.after, e.position, e.global_position, e.metadata
    FROM unnest(stream_names, after) AS a(stream_name, after)
    CROSS JOIN LATERAL (
      SELECT m.position, m.global_position, m.metadata
      FROM message_store.messages m
      WHERE m.stream_name = a.stream_name
      ORDER BY m.position DESC
      LIMIT 1
    ) AS e
    WHERE e.global_position > a.after
    UNION ALL
    SELECT n.stream_name, n.after, e.position, e.global_position, e.metadata
    FROM newer n
    CROSS JOIN LATERAL (
      SELECT m.position, m.global_position, m.metadata
      FROM message_store.messages m
      WHERE m.stream_name = n.stream_name AND m.position < n.position
      ORDER BY m.position DESC
      LIMIT 1
    ) AS e
    WHERE e.global_position > n.after
  )
  SELECT n.stream_name,
         n.metadata->'localProperties'->>'messageId',
         message_store.category(n.metadata->>'causationMessageStreamName')::text,
         CASE WHEN n.metadata->'localProperties'->>'sequence' ~ '^[0-9]{1,18}$'
              THEN (n.metadata->'localProperties'->>'sequence')::bigint END
  FROM newer n
  WHERE n.metadata->'localProperties' ?| ARRAY['messageId', 'sequence'];
END
$$;
