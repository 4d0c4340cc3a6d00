-- The pauses of a component, for its consumers, which ask with each rebalance and twice a second while they work;
-- NULL without any. Of each pause: category, type and entity, NULL for any; the reason, who, and since when.
CREATE OR REPLACE FUNCTION reservation.pauses_of(component text) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (
    SELECT jsonb_agg(
      jsonb_build_array(p.category, p.type, p.entity, p.reason, coalesce(p.on_behalf_of, p.paused_by), p.paused_at)
      ORDER BY p.paused_at)
    FROM reservation.pauses p
    WHERE p.component = pauses_of.component);
END
$$;

-- Has letters looked at now that wait for a pause which is over. The consumers do that when they see that a pause
-- ended, and when they start.
CREATE OR REPLACE FUNCTION reservation.release_paused(consumer text, category text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  released bigint;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('reservation.dead_letters', 0));  -- as who writes letters
  UPDATE reservation.dead_letters d SET next_attempt_at = clock_timestamp()
  WHERE (d.consumer, d.category) = (release_paused.consumer, release_paused.category)
    AND d.state = 'waiting' AND d.reason = 'paused' AND d.next_attempt_at > clock_timestamp()
    AND NOT EXISTS (
      SELECT FROM reservation.pauses p
      WHERE p.component = d.consumer AND coalesce(p.category, d.category) = d.category
        AND coalesce(p.type, d.type) = d.type AND coalesce(p.entity, d.entity) = d.entity);
  GET DIAGNOSTICS released = ROW_COUNT;
  RETURN released;
END
$$;
