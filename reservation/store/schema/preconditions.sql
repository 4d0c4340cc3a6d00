-- name: rights
-- Through the catalogs, because a name in a schema that the role may not use cannot be looked up.
WITH needed (schema, name, privilege) AS (
  VALUES
    ('message_store', 'messages', 'SELECT'),
    ('message_store', 'messages', 'INSERT'),
    ('reservation', 'versions', 'SELECT'),
    ('reservation', 'groups', 'SELECT'),
    ('reservation', 'groups', 'INSERT'),
    ('reservation', 'groups', 'UPDATE'),
    ('reservation', 'positions', 'SELECT'),
    ('reservation', 'leases', 'SELECT'),
    ('reservation', 'leases', 'INSERT'),
    ('reservation', 'leases', 'UPDATE'),
    ('reservation', 'moves', 'SELECT'),
    ('reservation', 'moves', 'INSERT'),
    ('reservation', 'moves', 'DELETE'),
    ('reservation', 'members', 'SELECT'),
    ('reservation', 'members', 'INSERT'),
    ('reservation', 'members', 'UPDATE'),
    ('reservation', 'members', 'DELETE'),
    ('reservation', 'heartbeats', 'SELECT'),
    ('reservation', 'heartbeats', 'INSERT'),
    ('reservation', 'heartbeats', 'DELETE'),
    ('reservation', 'dead_letters', 'SELECT'),
    ('reservation', 'dead_letters', 'INSERT'),
    ('reservation', 'dead_letters', 'UPDATE'),
    ('reservation', 'scheduled', 'SELECT'),
    ('reservation', 'scheduled', 'INSERT'),
    ('reservation', 'scheduled', 'UPDATE'),
    ('reservation', 'scheduled', 'DELETE')
), named AS (
  SELECT n.schema, n.name, n.privilege, s.oid AS schema_oid, c.oid AS table_oid
  FROM needed n
  LEFT JOIN pg_catalog.pg_namespace s ON s.nspname = n.schema
  LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = s.oid AND c.relname = n.name
), missing (what, ordinal) AS (
  SELECT DISTINCT 'USAGE on schema ' || schema, 1 FROM named
  WHERE NOT has_schema_privilege(schema_oid, 'USAGE')
  UNION ALL
  SELECT privilege || ' on ' || schema || '.' || name, 2 FROM named
  WHERE NOT CASE privilege WHEN 'DELETE' THEN has_table_privilege(table_oid, privilege)
                 ELSE has_any_column_privilege(table_oid, privilege) END
  UNION ALL
  SELECT 'USAGE on ' || format('%I.%I', s.nspname, q.relname), 3
  FROM named n
  JOIN pg_catalog.pg_depend d ON d.refobjid = n.table_oid AND d.deptype IN ('a', 'i')
    AND d.classid = 'pg_class'::regclass
  JOIN pg_catalog.pg_class q ON q.oid = d.objid
  JOIN pg_catalog.pg_namespace s ON s.oid = q.relnamespace
  WHERE n.name = 'messages' AND n.privilege = 'INSERT'
    AND CASE q.relkind WHEN 'S' THEN NOT has_sequence_privilege(q.oid, 'USAGE, UPDATE') END
)
SELECT
  current_user,
  (SELECT array_agg(DISTINCT schema || '.' || name) FROM named WHERE table_oid IS NULL),
  (SELECT array_agg(what ORDER BY ordinal, what) FROM missing)

-- name: log_sequence
-- The sequence that gives new messages their global position, the last value that it gave (NULL if it
-- gave none), whether it may be read, and the last position in the log. What it gave since the snapshot
-- was taken makes it no smaller.
SELECT s.nspname, q.relname,
       CASE WHEN has_sequence_privilege(q.oid, 'USAGE, SELECT')
            THEN pg_sequence_last_value(q.oid) END,
       has_sequence_privilege(q.oid, 'SELECT'),
       (SELECT max(m.global_position) FROM message_store.messages m)
FROM pg_catalog.pg_depend d
JOIN pg_catalog.pg_attribute a ON (a.attrelid, a.attnum) = (d.refobjid, d.refobjsubid)
JOIN pg_catalog.pg_class q ON q.oid = d.objid AND q.relkind = 'S'
JOIN pg_catalog.pg_namespace s ON s.oid = q.relnamespace
WHERE d.refobjid = 'message_store.messages'::regclass AND a.attname = 'global_position'
  AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')

-- name: next_value
SELECT last_value, is_called FROM {sequence}

-- name: keep_writers_off
SET LOCAL lock_timeout = '10s';
LOCK TABLE message_store.messages IN SHARE ROW EXCLUSIVE MODE
