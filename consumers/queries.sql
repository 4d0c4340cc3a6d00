-- name: claim
-- Takes over the position of a consumer: a process that held it before can not move it any more.
INSERT INTO reservation.positions (consumer, category)
VALUES (%(consumer)s, %(category)s)
ON CONFLICT (consumer, category)
DO UPDATE SET epoch = positions.epoch + 1, updated_at = now()
RETURNING position, epoch

-- name: advance
UPDATE reservation.positions
SET position = %(position)s, updated_at = now()
WHERE consumer = %(consumer)s AND category = %(category)s
  AND epoch = %(epoch)s AND position = %(before)s

-- name: epoch
SELECT epoch FROM reservation.positions WHERE consumer = %(consumer)s AND category = %(category)s

-- name: renew
-- Waits for a transaction that moves the position: it may be our own, of a connection that was lost
-- while it committed.
SELECT position, epoch FROM reservation.positions
WHERE consumer = %(consumer)s AND category = %(category)s
FOR UPDATE

-- name: settings
-- A lock is waited for no longer than it takes to look whether to stop; a batch takes as long as it
-- takes; a client that went silent is gone after a minute, and so are its locks. Not every version of
-- PostgreSQL has each.
SELECT set_config(pg_settings.name, wanted.value, false)
FROM (VALUES
  ('lock_timeout', '1s'),
  ('statement_timeout', '0'),
  ('transaction_timeout', '0'),
  ('idle_in_transaction_session_timeout', '0'),
  ('idle_session_timeout', '0'),
  ('tcp_keepalives_idle', '30'),
  ('tcp_keepalives_interval', '10'),
  ('tcp_keepalives_count', '3'),
  ('tcp_user_timeout', '60000')
) AS wanted (name, value)
JOIN pg_catalog.pg_settings ON pg_settings.name = wanted.name

-- name: watch_the_client
SELECT set_config('client_connection_check_interval', '2s', false)
