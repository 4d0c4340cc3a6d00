-- name: stored
-- Every partition there is, of the consumers and categories that are named, or of all; and one for
-- each of those named that was never run.
WITH wanted AS (
  SELECT * FROM unnest(%(consumers)s::text[], %(categories)s::text[]) AS w(consumer, category)
), stored AS (
  SELECT p.consumer, p.category, p.partition, g.partitions, g.former_positions, p.position, p.message_id,
         p.epoch, reservation.is_foreign(p.position, p.message_id)
           OR reservation.has_foreign_former_positions(p.consumer, p.category) AS "foreign",
         p.updated_at, p.holder IS NOT NULL AS held, m.process,
         coalesce(reservation.is_gone(m.member), true) AS gone
  FROM reservation.groups g
  JOIN reservation.positions p USING (consumer, category)
  LEFT JOIN reservation.members m ON m.member = p.holder
  WHERE %(consumers)s::text[] IS NULL OR (g.consumer, g.category) IN (SELECT * FROM wanted)
)
SELECT * FROM stored
UNION ALL
SELECT consumer, category, 0, 1, NULL, 0, NULL, 0, false, NULL, false, NULL, false
FROM wanted
WHERE (consumer, category) NOT IN (SELECT consumer, category FROM stored)
ORDER BY consumer, category, partition

-- name: is_drained
-- Whether no partition's position is before the last message of the category, and no letter is due now or within a
-- second, but for those that wait for a breaker; or the consumer is paused.
SELECT EXISTS (
  SELECT FROM reservation.pauses
  WHERE component = %(consumer)s AND coalesce(category, %(category)s) = %(category)s
    AND type IS NULL AND entity IS NULL
) OR coalesce(min(p.position), 0) >= reservation.category_head(%(category)s) AND NOT EXISTS (
  SELECT FROM reservation.dead_letters l
  WHERE l.consumer = %(consumer)s AND l.category = %(category)s AND l.state = 'waiting'
    AND l.next_attempt_at <= clock_timestamp() + interval '1 second'
    AND (l.reason <> 'breaker_open' OR l.type <> ALL (ARRAY(
      SELECT unnest(b.types) FROM reservation.breaker_states(%(consumer)s, %(category)s) AS b
      WHERE b.wait > 1)))
    AND NOT EXISTS (
      SELECT FROM reservation.dead_letters d
      WHERE d.consumer = l.consumer AND d.category = l.category AND d.entity = l.entity
        AND d.state IN ('waiting', 'parked', 'dead') AND d.global_position < l.global_position))
  AND NOT EXISTS (
    SELECT FROM reservation.parked_heads(%(consumer)s, %(category)s, NULL, 1, 1))
FROM reservation.positions p
WHERE p.consumer = %(consumer)s AND p.category = %(category)s
