-- name: settings
-- A call that a crash of the server forgets is one more within a second, so nothing waits for the disk.
SET synchronous_commit = off

-- name: take_calls
SELECT * FROM reservation.take_calls(
  %(consumer)s, %(category)s, %(rate)s, %(seconds)s, %(burst)s, %(calls)s, %(horizon)s, %(is_new)s)

-- name: forget_rates
SELECT reservation.forget_rates(%(consumer)s, %(category)s)

-- name: declare_breakers
SELECT reservation.declare_breakers(%(consumer)s, %(category)s, %(declared)s)

-- name: breaker_states
SELECT type, wait, is_probing, awaits_success
FROM reservation.breaker_states(%(consumer)s, %(category)s)

-- name: claim_probe
SELECT claimed, wait, is_probing, awaits_success
FROM reservation.claim_probe(%(consumer)s, %(category)s, %(type)s, %(open_for)s)

-- name: breaker_failed
SELECT wait, is_probing, has_opened, is_alone
FROM reservation.breaker_failed(
  %(consumer)s, %(category)s, %(types)s, %(failures)s, %(within)s, %(open_for)s, %(error_type)s, %(is_probe)s)

-- name: breaker_succeeded
SELECT reservation.breaker_succeeded(%(consumer)s, %(category)s, %(type)s, %(is_probe)s)

-- name: probe_ended
SELECT reservation.probe_ended(%(consumer)s, %(category)s, %(type)s, %(open_for)s)
