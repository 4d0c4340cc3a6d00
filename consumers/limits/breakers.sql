-- name: declare
SELECT reservation.declare_breakers(%(component)s, %(category)s, %(declared)s)

-- name: states
SELECT type, wait, is_probing, awaits_success
FROM reservation.breaker_states(%(component)s, %(category)s)

-- name: claim
SELECT claimed, wait, is_probing, awaits_success
FROM reservation.claim_probe(%(component)s, %(category)s, %(type)s, %(open_for)s)

-- name: failed
SELECT wait, is_probing, has_opened, is_alone
FROM reservation.breaker_failed(
  %(component)s, %(category)s, %(types)s, %(failures)s, %(within)s, %(open_for)s, %(error_type)s, %(is_probe)s)

-- name: succeeded
SELECT reservation.breaker_succeeded(%(component)s, %(category)s, %(type)s, %(is_probe)s)

-- name: ended
SELECT reservation.probe_ended(%(component)s, %(category)s, %(type)s, %(open_for)s)
