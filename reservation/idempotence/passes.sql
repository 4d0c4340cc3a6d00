-- name: handled_before
SELECT reservation.handled_before(
  %(consumer)s, %(category)s, %(positions)s, %(ids)s::uuid[], %(events)s, %(streams)s)

-- name: record
SELECT reservation.record_passes(
  %(consumer)s, %(category)s, %(positions)s, %(ids)s::uuid[], %(reasons)s,
  %(followers)s::uuid[])
