-- name: may_see_senders
SELECT has_table_privilege('reservation.sender_categories', 'SELECT')

-- name: senders
-- The categories that senders may write to.
SELECT array_agg(c.role::oid ORDER BY c.role, c.category),
       array_agg(c.category ORDER BY c.role, c.category)
FROM reservation.sender_categories c

-- name: roles
-- Roles that were made a sender, a consumer, an operator or an auditor, each with what it lacks of the
-- rights that `reservation store grants` would give it now. What a role was made is seen by what it has: a
-- consumer writes positions and members, an operator may write some columns or give letters data, an auditor only
-- reads the schema reservation, and most of it, a sender has categories. A role that reads a few tables,
-- such as one for monitoring, is none of these.
-- Superusers and owners lack nothing. With a kind given it is the role of this session alone, taken for
-- one of that kind, with what it has from the roles that it is a member of. Through the catalogs, because a name in a schema that the
-- role may not use cannot be looked up.
WITH senders AS (
  SELECT role, category FROM unnest(%(senders)s::oid[], %(categories)s::text[]) AS s(role, category)
), schemas AS (
  SELECT oid, nspname FROM pg_catalog.pg_namespace
  WHERE nspname IN ('message_store', 'reservation')
), holders AS (
  SELECT a.grantee, bool_or(a.privilege_type <> 'SELECT') AS writes,
         bool_or(a.privilege_type <> 'SELECT' AND c.relname IN ('leases', 'members')) AS consumes,
         count(DISTINCT c.oid) FILTER (WHERE a.privilege_type = 'SELECT') > 10 AS audits
  FROM pg_catalog.pg_class c
  JOIN schemas s ON s.oid = c.relnamespace AND s.nspname = 'reservation'
  CROSS JOIN LATERAL aclexplode(c.relacl) AS a
  WHERE a.grantee <> c.relowner
  GROUP BY a.grantee
), operators AS (
  SELECT DISTINCT a.grantee
  FROM pg_catalog.pg_proc p
  JOIN schemas s ON s.oid = p.pronamespace AND s.nspname = 'reservation'
  CROSS JOIN LATERAL aclexplode(p.proacl) AS a
  WHERE p.proname = 'retry_with_data' AND a.grantee <> p.proowner
  UNION
  SELECT a.grantee
  FROM pg_catalog.pg_class c
  JOIN schemas s ON s.oid = c.relnamespace AND s.nspname = 'reservation'
  JOIN pg_catalog.pg_attribute t ON t.attrelid = c.oid
  CROSS JOIN LATERAL aclexplode(t.attacl) AS a
  WHERE c.relname IN ('dead_letters', 'finding_decisions') AND a.grantee <> c.relowner
), kinds AS (
  SELECT r.oid, r.rolname,
         CASE WHEN %(kind)s::text IS NOT NULL THEN %(kind)s
              WHEN h.consumes THEN 'consumer'
              WHEN r.oid IN (SELECT grantee FROM operators) THEN 'operator'
              WHEN h.audits AND NOT h.writes THEN 'auditor'
              WHEN EXISTS (SELECT FROM senders s WHERE s.role = r.oid)
              THEN 'sender'
         END AS kind
  FROM pg_catalog.pg_roles r
  LEFT JOIN holders h ON h.grantee = r.oid
  WHERE CASE WHEN %(kind)s::text IS NOT NULL THEN r.rolname = current_user
             ELSE NOT r.rolsuper AND r.rolname <> 'message_store' END
), needed_tables (kind, name, privileges) AS (
  VALUES
    ('consumer', 'message_store.messages', ARRAY['SELECT', 'INSERT']),
    ('consumer', 'reservation.versions', ARRAY['SELECT']),
    ('consumer', 'reservation.store_identity', ARRAY['SELECT']),
    ('consumer', 'reservation.finding_decisions', ARRAY['SELECT']),
    ('consumer', 'reservation.letter_decisions', ARRAY['SELECT']),
    ('consumer', 'reservation.groups', ARRAY['SELECT', 'INSERT', 'UPDATE']),
    ('consumer', 'reservation.positions', ARRAY['SELECT']),
    ('consumer', 'reservation.leases', ARRAY['SELECT', 'INSERT', 'UPDATE']),
    ('consumer', 'reservation.moves', ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('consumer', 'reservation.members', ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('consumer', 'reservation.heartbeats', ARRAY['SELECT', 'INSERT', 'DELETE']),
    ('consumer', 'reservation.dead_letters', ARRAY['SELECT']),
    ('consumer', 'reservation.snapshots', ARRAY['SELECT', 'INSERT', 'UPDATE']),
    ('consumer', 'reservation.processed_handlers', ARRAY['SELECT', 'INSERT', 'UPDATE']),
    ('consumer', 'reservation.processed_messages', ARRAY['SELECT', 'INSERT']),
    ('consumer', 'reservation.passes', ARRAY['SELECT', 'INSERT']),
    ('consumer', 'reservation.revisions', ARRAY['SELECT', 'INSERT', 'UPDATE']),
    ('consumer', 'reservation.states', ARRAY['SELECT', 'INSERT', 'DELETE']),
    ('consumer', 'reservation.rates', ARRAY['SELECT', 'INSERT', 'DELETE']),
    ('consumer', 'reservation.state_horizons', ARRAY['SELECT', 'INSERT', 'UPDATE']),
    ('consumer', 'reservation.scheduled', ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('consumer', 'reservation.series', ARRAY['SELECT', 'INSERT', 'UPDATE']),
    ('consumer', 'reservation.breakers', ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
    ('consumer', 'reservation.pauses', ARRAY['SELECT', 'DELETE']),
    ('operator', 'message_store.messages', ARRAY['SELECT']),
    ('operator', 'reservation.versions', ARRAY['SELECT']),
    ('operator', 'reservation.store_identity', ARRAY['SELECT']),
    ('operator', 'reservation.dead_letters', ARRAY['SELECT']),
    ('operator', 'reservation.finding_decisions', ARRAY['SELECT']),
    ('operator', 'reservation.letter_decisions', ARRAY['SELECT']),
    ('operator', 'reservation.scheduled', ARRAY['SELECT']),
    ('operator', 'reservation.series', ARRAY['SELECT']),
    ('operator', 'reservation.groups', ARRAY['SELECT']),
    ('operator', 'reservation.members', ARRAY['SELECT']),
    ('operator', 'reservation.pauses', ARRAY['SELECT', 'DELETE'])
  UNION ALL
  SELECT 'auditor', s.nspname || '.' || c.relname, ARRAY['SELECT']
  FROM pg_catalog.pg_class c
  JOIN schemas s ON s.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
), tables AS (
  SELECT n.kind, n.name, c.oid, privilege
  FROM needed_tables n
  CROSS JOIN LATERAL unnest(n.privileges) AS privilege
  JOIN schemas s ON s.nspname = split_part(n.name, '.', 1)
  JOIN pg_catalog.pg_class c ON c.relnamespace = s.oid AND c.relname = split_part(n.name, '.', 2)
), needed_columns (kind, name, columns, privilege) AS (
  VALUES
    ('operator', 'dead_letters', ARRAY['state', 'attempts', 'next_attempt_at', 'changed_at'], 'UPDATE'),
    ('consumer', 'dead_letters', ARRAY[
      'consumer', 'category', 'global_position', 'message_id', 'stream_name', 'type', 'entity',
      'state', 'reason', 'error', 'digest', 'attempts', 'process', 'next_attempt_at',
      'error_type', 'error_place', 'error_text', 'error_traceback', 'key_fields', 'rate'], 'INSERT'),
    ('consumer', 'dead_letters', ARRAY[
      'message_id', 'stream_name', 'type', 'entity', 'state', 'reason', 'error', 'digest', 'attempts',
      'process', 'changed_at', 'next_attempt_at', 'error_type', 'error_place',
      'error_text', 'error_traceback', 'key_fields', 'rate'], 'UPDATE'),
    ('operator', 'finding_decisions', ARRAY['finding', 'is_accepted', 'reason', 'on_behalf_of'], 'INSERT'),
    ('operator', 'scheduled', ARRAY['cancelled_at', 'dead_at', 'attempts', 'attempt_at'], 'UPDATE')
  UNION ALL
  SELECT k.kind, i.name, i.columns, 'INSERT'
  FROM (VALUES ('consumer'), ('operator')) AS k(kind)
  CROSS JOIN (
    VALUES
      ('letter_decisions', ARRAY[
        'consumer', 'category', 'global_position', 'message_id', 'decision', 'former_state', 'reason',
        'on_behalf_of', 'request']),
      ('pauses', ARRAY['component', 'category', 'type', 'entity', 'reason', 'on_behalf_of'])
  ) AS i(name, columns)
), columns AS (
  SELECT n.kind, n.name, n.privilege, c.oid, a.attname, a.attnum
  FROM needed_columns n
  JOIN schemas s ON s.nspname = 'reservation'
  JOIN pg_catalog.pg_class c ON c.relnamespace = s.oid AND c.relname = n.name
  JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = ANY (n.columns)
), functions AS (
  SELECT k.kind, s.nspname || '.' || p.proname AS name, p.oid
  FROM (VALUES ('consumer'), ('sender'), ('operator'), ('auditor')) AS k(kind)
  CROSS JOIN pg_catalog.pg_proc p
  JOIN schemas s ON s.oid = p.pronamespace
  WHERE s.nspname = 'reservation' AND (
      k.kind = 'consumer' AND p.proname <> 'retry_with_data'
      OR k.kind = 'operator' AND p.proname IN (
           'retry_with_data', 'cancel_scheduled', 'flush_with_commit', 'readable_text', 'readable_large_text',
           'readable_time', 'readable_type')
      OR k.kind = 'auditor' AND (p.provolatile <> 'v' OR p.proname = 'flush_with_commit')
      OR k.kind = 'sender' AND p.proname IN (
           'write_messages', 'write_message', 'write_each', 'send_messages', 'may_insert',
           'commit_message', 'commit_messages', 'commit_each', 'log_record', 'flush_with_commit',
           'next_revision', 'outcome', 'ask', 'may_read', 'notice_channel', 'notice_lock', 'expect_notice',
           'expect_no_notice',
           'schedule_messages', 'schedule_message', 'send_scheduled', 'cancel_scheduled',
           'cancel_sent',
           'http_request', 'begin_http_request', 'answer_http_request', 'park_http_request',
           'send_http_command', 'sent_http_commands'))
    OR s.nspname = 'message_store' AND p.proname = ANY (CASE k.kind
      WHEN 'consumer' THEN ARRAY['category', 'hash_64', 'message_store_version']
      WHEN 'operator' THEN ARRAY['message_store_version']
      WHEN 'auditor' THEN ARRAY[
        'id', 'cardinal_id', 'category', 'is_category', 'hash_64', 'message_store_version',
        'stream_version', 'get_stream_messages', 'get_category_messages',
        'get_last_stream_message']
    END)
), lacking AS (
  SELECT k.oid, 1 AS n, 'USAGE on schema ' || s.nspname AS what,
         format('GRANT USAGE ON SCHEMA %%I', s.nspname) AS remedy
  FROM kinds k
  CROSS JOIN schemas s
  WHERE k.kind IS NOT NULL AND NOT (k.kind = 'sender' AND s.nspname = 'message_store')
    AND NOT has_schema_privilege(k.oid, s.oid, 'USAGE')
  UNION ALL
  SELECT k.oid, 2, t.privilege || ' on ' || t.name,
         format('GRANT %%s ON %%s', t.privilege, t.oid::regclass)
  FROM kinds k
  JOIN tables t USING (kind)
  WHERE NOT has_table_privilege(k.oid, t.oid, t.privilege)
  UNION ALL
  SELECT k.oid, 2, format('%%s (%%s) on reservation.%%s', n.privilege, n.attname, n.name),
         format('GRANT %%s (%%I) ON %%s', n.privilege, n.attname, n.oid::regclass)
  FROM kinds k
  JOIN columns n USING (kind)
  WHERE NOT has_column_privilege(k.oid, n.oid, n.attnum, n.privilege)
  UNION ALL
  SELECT k.oid, 3, 'USAGE on sequence ' || s.nspname || '.' || q.relname,
         format('GRANT USAGE ON SEQUENCE %%s', q.oid::regclass)
  FROM kinds k
  CROSS JOIN pg_catalog.pg_class q
  JOIN schemas s ON s.oid = q.relnamespace AND s.nspname = 'message_store'
  WHERE k.kind = 'consumer'
    AND CASE q.relkind WHEN 'S' THEN NOT has_sequence_privilege(k.oid, q.oid, 'USAGE, UPDATE') END
  UNION ALL
  SELECT k.oid, 4, 'EXECUTE on ' || f.name,
         format('GRANT EXECUTE ON ROUTINE %%s', f.oid::regprocedure)
  FROM kinds k
  JOIN functions f USING (kind)
  WHERE NOT has_function_privilege(k.oid, f.oid, 'EXECUTE')
)
SELECT k.rolname::text, k.kind,
       coalesce(array_agg(l.what ORDER BY l.n, l.what) FILTER (WHERE l.what IS NOT NULL), '{}'),
       coalesce(array_agg(l.remedy || format(' TO %%I', k.rolname) ORDER BY l.n, l.what)
                  FILTER (WHERE l.what IS NOT NULL), '{}'),
       ARRAY(SELECT s.category FROM senders s WHERE s.role = k.oid ORDER BY 1)
FROM kinds k
LEFT JOIN lacking l USING (oid)
WHERE k.kind IS NOT NULL
GROUP BY k.rolname, k.kind, k.oid
ORDER BY k.rolname

-- name: exceeds
-- Whether the role of this session may change what an auditor only reads.
SELECT bool_or(has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
               OR has_any_column_privilege(c.oid, 'INSERT, UPDATE'))
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
WHERE s.nspname IN ('message_store', 'reservation') AND c.relkind IN ('r', 'p')
