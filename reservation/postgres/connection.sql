-- name: settings
-- What our statements rely on, whatever a role or a database has set. Of the output style of dates the
-- order of the parts is kept. A limit that the address itself names is kept too. Where pg_catalog is in
-- the search path it is removed, because it is then searched first. With row_security off, a policy that
-- would hide rows is an error. Without array_nulls NULL in a list is a text. A replica fires no triggers; who may
-- not set that otherwise is refused. Not every version has each setting; operators are named in full, because the
-- search path is not known yet.
SELECT pg_catalog.set_config(s.name, coalesce(wanted.value, pg_catalog.btrim(
         pg_catalog.regexp_replace(
           pg_catalog.concat(', ', s.setting), ',[[:space:]]*"?pg_catalog"?[[:space:]]*(?=,|$)', '', 'g'), ', ')), false)
FROM (VALUES
  ('search_path', NULL, true),
  ('DateStyle', 'ISO', true),
  ('IntervalStyle', 'postgres', true),
  ('row_security', 'off', true),
  ('standard_conforming_strings', 'on', true),
  ('array_nulls', 'on', true),
  ('default_transaction_read_only', 'off', true),
  ('default_transaction_deferrable', 'off', true),
  ('session_replication_role', 'origin', true),
  ('statement_timeout', '0', false),
  ('lock_timeout', '0', false),
  ('transaction_timeout', '0', false),
  ('idle_in_transaction_session_timeout', '0', false),
  ('idle_session_timeout', '0', false)
) AS wanted (name, value, always)
JOIN pg_catalog.pg_settings s ON s.name OPERATOR(pg_catalog.=) wanted.name
WHERE (wanted.always OR s.source OPERATOR(pg_catalog.<>) 'client')
  AND (s.setting OPERATOR(pg_catalog.=) wanted.value) IS NOT TRUE

-- name: sender_settings
-- What a sender that has its sessions for itself relies on. On a higher level of isolation it would not see what was
-- written while it waited for the lock of a category.
SELECT pg_catalog.set_config(s.name, wanted.value, false)
FROM (VALUES
  ('default_transaction_isolation', 'read committed'),
  ('default_transaction_read_only', 'off'),
  ('default_transaction_deferrable', 'off'),
  ('session_replication_role', 'origin')
) AS wanted (name, value)
JOIN pg_catalog.pg_settings s ON s.name OPERATOR(pg_catalog.=) wanted.name
WHERE s.setting OPERATOR(pg_catalog.<>) wanted.value

-- name: backend
SELECT pg_catalog.pg_backend_pid()
