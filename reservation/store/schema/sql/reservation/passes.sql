-- Messages of subscribed categories that were handled before, and those that no event followed from.

-- The global positions of those of some messages that were handled before: the first event that follows
-- from each is in the stream of its entity, or it is recorded that none did. Each is looked up by itself:
-- in a join the planner may take all passes of the category first, which it expects to be few.
CREATE OR REPLACE FUNCTION reservation.handled_before(
  consumer text, category text, positions bigint[], ids uuid[], events uuid[], streams text[]
) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    SELECT b.global_position
    FROM unnest(positions, events, streams) AS b(global_position, event, stream_name)
    CROSS JOIN LATERAL (
      SELECT m.stream_name FROM message_store.messages m WHERE m.id = b.event LIMIT 1
    ) AS m
    WHERE m.stream_name = b.stream_name
    UNION ALL
    SELECT b.global_position
    FROM unnest(positions, ids) AS b(global_position, message_id)
    CROSS JOIN LATERAL (
      SELECT FROM reservation.passes p
      WHERE (p.consumer, p.category, p.global_position, p.message_id)
            = (handled_before.consumer, handled_before.category, b.global_position, b.message_id)
      LIMIT 1
    ) AS passed;
END
$$;

-- Records messages, with the reason why no event followed, and the first message that was written instead.
-- One that is read again, because the position was set back, is recorded already.
CREATE OR REPLACE FUNCTION reservation.record_passes(
  consumer text, category text, positions bigint[], ids uuid[], reasons text[],
  followers uuid[]
) RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
  INSERT INTO reservation.passes (consumer, category, global_position, message_id, reason,
                                  follower)
  SELECT record_passes.consumer, record_passes.category, p.*
  FROM unnest(positions, ids, reasons, followers) AS p(global_position, message_id, reason, follower)
  ON CONFLICT DO NOTHING
$$;
