-- name: oldest
-- Who has kept the server longest from removing old versions of rows in this database.
SELECT h.kind, h.name, h.role, h.application, h.since
FROM (
  SELECT 'session' AS kind, a.pid::text AS name, a.usename::text AS role,
         a.application_name AS application, a.xact_start AS since,
         greatest(age(a.backend_xmin), age(a.backend_xid)) AS transactions
  FROM pg_stat_activity a
  WHERE a.backend_type = 'client backend' AND a.datname = current_database()
    AND a.pid <> pg_backend_pid()
  UNION ALL
  SELECT 'prepared transaction', p.gid, p.owner::text, NULL, p.prepared, age(p.transaction)
  FROM pg_prepared_xacts p
  WHERE p.database = current_database()
) AS h
WHERE h.transactions IS NOT NULL AND h.since < now() - make_interval(secs => %(seconds)s)
ORDER BY h.since
LIMIT 1
