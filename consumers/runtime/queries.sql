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
