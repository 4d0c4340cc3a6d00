-- name: settings
SET lock_timeout = '200ms'

-- name: tables
SELECT schemaname, tablename FROM pg_tables
WHERE (schemaname, tablename) = ('message_store', 'messages')
  OR schemaname NOT IN ('message_store', 'reservation', 'pg_catalog', 'information_schema')
  AND schemaname NOT LIKE 'pg\_t%'

-- name: others
SELECT pid, coalesce(state, 'unknown') FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'
  AND pid <> ALL (%s) AND application_name NOT LIKE %s

-- name: locks
SELECT classid::bigint, objid::bigint, objsubid::int FROM pg_locks
WHERE locktype = 'advisory' AND granted AND pid = %s
