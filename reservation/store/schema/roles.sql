-- name: role
-- Whether the role is there, and why nothing may be taken from it, if so.
SELECT CASE
         WHEN r.rolsuper THEN 'it is a superuser'
         WHEN r.rolname = 'message_store' THEN 'it is the role of Message DB''s clients'
         WHEN EXISTS (
           SELECT FROM pg_namespace n
           WHERE n.nspname IN ('message_store', 'reservation') AND n.nspowner = r.oid
           UNION ALL
           SELECT FROM pg_class c
           WHERE c.relnamespace IN (to_regnamespace('message_store'), to_regnamespace('reservation'))
             AND c.relowner = r.oid
           UNION ALL
           SELECT FROM pg_proc p
           WHERE p.pronamespace IN (to_regnamespace('message_store'), to_regnamespace('reservation'))
             AND p.proowner = r.oid
         ) THEN 'it owns a part of the store'
       END
FROM pg_roles r
WHERE r.rolname = %s

-- name: functions
-- The functions that a kind of role may call, as GRANT names them. What an auditor may call only
-- reads, but for the one that flushes: PostgreSQL lets a function that is not volatile write nothing.
SELECT replace(object.identity, 'pg_catalog.', '')
FROM pg_proc p, pg_identify_object('pg_proc'::regclass, p.oid, 0) AS object
WHERE p.pronamespace = to_regnamespace('reservation')
    AND CASE %(kind)s
      WHEN 'consumer' THEN p.proname <> 'retry_with_data'
      WHEN 'operator' THEN p.proname IN (
        'retry_with_data', 'cancel_scheduled', 'flush_with_commit', 'readable_text', 'readable_large_text',
        'readable_time', 'readable_type')
      WHEN 'auditor' THEN p.provolatile <> 'v' OR p.proname = 'flush_with_commit'
    END
  OR p.pronamespace = to_regnamespace('message_store')
    AND p.proname = ANY (CASE %(kind)s
      WHEN 'consumer' THEN ARRAY['category', 'hash_64', 'message_store_version']
      WHEN 'operator' THEN ARRAY['message_store_version']
      WHEN 'auditor' THEN ARRAY[
        'id', 'cardinal_id', 'category', 'is_category', 'hash_64', 'message_store_version',
        'stream_version', 'get_stream_messages', 'get_category_messages',
        'get_last_stream_message']
    END)
ORDER BY 1

-- name: effective
-- What a role may do in either schema, however it came by it. What it may call in message_store
-- does not count: Message DB lets everybody call its functions, which run with the caller's rights.
SELECT held.privilege || ' on ' || held.object
FROM (
  SELECT 1 AS n, 'schema ' || s.nspname AS object, privilege
  FROM pg_namespace s, unnest(ARRAY['USAGE', 'CREATE']) AS privilege
  WHERE s.nspname IN ('message_store', 'reservation')
    AND has_schema_privilege(%(role)s::name, s.oid, privilege)
  UNION ALL
  SELECT 0, c.relnamespace::regnamespace || '.' || c.relname, privilege
  FROM pg_class c,
       unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'SELECT', 'REFERENCES', 'TRIGGER'])
         AS privilege
  WHERE c.relnamespace IN (to_regnamespace('message_store'), to_regnamespace('reservation'))
    AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND (has_table_privilege(%(role)s::name, c.oid, privilege)
         OR CASE WHEN privilege IN ('INSERT', 'UPDATE', 'SELECT', 'REFERENCES')
                 THEN has_any_column_privilege(%(role)s::name, c.oid, privilege) END)
  UNION ALL
  SELECT 2, c.relnamespace::regnamespace || '.' || c.relname, privilege
  FROM pg_class c, unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) AS privilege
  WHERE c.relnamespace IN (to_regnamespace('message_store'), to_regnamespace('reservation'))
    AND CASE WHEN c.relkind = 'S'
             THEN has_sequence_privilege(%(role)s::name, c.oid, privilege) END
  UNION ALL
  SELECT 3, 'reservation.' || p.proname, 'EXECUTE'
  FROM pg_proc p
  WHERE p.pronamespace = to_regnamespace('reservation')
    AND has_function_privilege(%(role)s::name, p.oid, 'EXECUTE')
) AS held
ORDER BY held.n, held.object, held.privilege
