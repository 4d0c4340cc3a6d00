-- name: declare_series
SELECT name, at, reached, attempted, attempt_at
FROM reservation.declare_series(%(component)s, %(names)s, %(expressions)s, %(zones)s, %(missed)s)

-- name: is_replaced
-- Whether a newer process declares one of these series otherwise, or not at all.
SELECT NOT reservation.newest_series(%(component)s) @> %(series)s::jsonb

-- name: claim_tick
SELECT reservation.claim_tick(%(component)s, %(name)s, %(reached)s, %(tick)s)

-- name: send_tick
SELECT reservation.send_tick(
  %(component)s, %(name)s, %(reached)s, %(tick)s, %(is_tick)s,
  %(id)s::uuid, %(stream_name)s, %(type)s, %(data)s::jsonb, %(metadata)s::jsonb)

-- name: fail_tick
SELECT reservation.fail_tick(%(component)s, %(name)s, %(reached)s, %(tick)s, %(error)s)
