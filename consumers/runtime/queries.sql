-- name: settings
-- A lock is waited for no longer than it takes to look whether to stop; a batch takes as long as it
-- takes; a client that went silent is gone after a minute, and so are its locks. Not every version of
-- PostgreSQL has each. A write that is refused is no answer to anybody, because the batch is run again:
-- it waits for no flush, see flush_now.
SELECT set_config(wanted.name, wanted.value, false)
FROM (VALUES
  ('lock_timeout', '1s'),
  ('statement_timeout', '0'),
  ('transaction_timeout', '0'),
  ('idle_in_transaction_session_timeout', '0'),
  ('idle_session_timeout', '0'),
  ('tcp_keepalives_idle', '30'),
  ('tcp_keepalives_interval', '10'),
  ('tcp_keepalives_count', '3'),
  ('tcp_user_timeout', '60000'),
  ('reservation.caller_flushes', 'refusals')
) AS wanted (name, value)
LEFT JOIN pg_catalog.pg_settings ON pg_settings.name = wanted.name
WHERE pg_settings.name IS NOT NULL OR wanted.name LIKE 'reservation.%'

-- name: watch_the_client
SELECT set_config('client_connection_check_interval', '2s', false)

-- name: handler_settings
-- An async handler may wait for a lock of its own batch, which waits for the handler. A session of a
-- pooler may have begun with another encoding, which DISCARD ALL restores.
SELECT set_config('lock_timeout', '1s', false), set_config('client_encoding', 'UTF8', false)

-- name: discard
DISCARD ALL
