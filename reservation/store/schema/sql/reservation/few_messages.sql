-- What a consumer that waits for messages reads with the few that wake it up, in one round trip: each
-- further one is in the way of the message.

-- Reads a batch as read_part does, of a category whose streams are named by the ids of entities. If it has
-- no more than `most` messages, the last events of each entity follow them, up to `latest` and to
-- `latest_bytes` as they are stored, in their order. `entity_stream` is the stream of a message's entity;
-- with an event it is the event's own. A row without an id says that the last event is larger.
CREATE OR REPLACE FUNCTION reservation.read_with_entities(
  category text, first bigint, last bigint, batch_size bigint,
  partitions integer[], size integer, former_positions bigint[], max_bytes bigint,
  component text, most integer, latest integer, latest_bytes bigint
) RETURNS TABLE (
  id varchar, stream_name varchar, type varchar, "position" bigint, global_position bigint,
  data varchar, metadata varchar, "time" timestamp, entity_stream text
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET row_security = off
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
      category, first, last, batch_size, partitions, size, former_positions, max_bytes) AS m
  LOOP
    RETURN NEXT;
    streams := streams || read_with_entities.entity_stream;
  END LOOP;

  IF cardinality(streams) <= most THEN
    RETURN QUERY
    SELECT CASE WHEN e.bytes <= latest_bytes THEN e.id::varchar END, e.stream_name::varchar,
           reservation.readable_type(e.type), e.position, e.global_position,
           CASE WHEN e.bytes <= latest_bytes THEN reservation.readable_text(e.data) END,
           CASE WHEN e.bytes <= latest_bytes THEN reservation.readable_text(e.metadata) END,
           reservation.readable_time(e.time), s.stream_name
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
