-- name: handled_before
SELECT reservation.handled_before(%s, %s, %s, %s::uuid[], %s, %s)

-- name: record
SELECT reservation.record_passes(
  %(consumer)s, %(category)s, %(positions)s, %(ids)s::uuid[], %(reasons)s,
  %(followers)s::uuid[])

-- name: count_removable
SELECT count(*) FROM reservation.passes p
WHERE p.consumer = %(consumer)s AND p.category = %(category)s
  AND p.passed_at < clock_timestamp() - %(older_than)s::interval

-- name: remove
-- Those with the lowest positions first, so that what an earlier step left in the index is behind.
WITH to_go AS MATERIALIZED (
  SELECT p.global_position, p.message_id
  FROM reservation.passes p
  WHERE p.consumer = %(consumer)s AND p.category = %(category)s
    AND p.passed_at < clock_timestamp() - %(older_than)s::interval
  ORDER BY p.global_position
  LIMIT %(limit)s
), gone AS (
  DELETE FROM reservation.passes p
  USING to_go t
  WHERE p.consumer = %(consumer)s AND p.category = %(category)s
    AND p.global_position = t.global_position AND p.message_id = t.message_id
  RETURNING 1
)
SELECT count(*) FROM gone

-- name: forget
DELETE FROM reservation.passes WHERE consumer = %(consumer)s AND category = %(category)s
