-- name: settings
-- What our statements rely on, whatever a role or a database has set. Of the output style of dates the
-- order of the parts is kept. A limit that the address itself names is kept too. Where pg_catalog is in
-- the search path it is removed, because it is then searched first. With row_security off, a policy that
-- would hide rows is an error. Not every version has each setting; operators are named in full, because
-- the search path is not known yet.
SELECT pg_catalog.set_config(s.name, coalesce(wanted.value, pg_catalog.btrim(
         pg_catalog.regexp_replace(
           pg_catalog.concat(', ', s.setting), ',[[:space:]]*"?pg_catalog"?[[:space:]]*(?=,|$)', '', 'g'), ', ')), false)
FROM (VALUES
  ('search_path', NULL, true),
  ('DateStyle', 'ISO', true),
  ('IntervalStyle', 'postgres', true),
  ('row_security', 'off', true),
  ('standard_conforming_strings', 'on', true),
  ('statement_timeout', '0', false),
  ('lock_timeout', '0', false),
  ('transaction_timeout', '0', false),
  ('idle_in_transaction_session_timeout', '0', false),
  ('idle_session_timeout', '0', false)
) AS wanted (name, value, always)
JOIN pg_catalog.pg_settings s ON s.name OPERATOR(pg_catalog.=) wanted.name
WHERE wanted.always OR s.source OPERATOR(pg_catalog.<>) 'client'

-- name: backend
SELECT pg_catalog.pg_backend_pid()
