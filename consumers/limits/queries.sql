-- name: settings
-- A call that a crash of the server forgets is one more within a second, so nothing waits for the disk.
SET synchronous_commit = off

-- name: take_calls
SELECT * FROM reservation.take_calls(
  %(consumer)s, %(category)s, %(rate)s, %(seconds)s, %(burst)s, %(calls)s, %(horizon)s, %(is_new)s)

-- name: forget_rates
SELECT reservation.forget_rates(%(consumer)s, %(category)s)
