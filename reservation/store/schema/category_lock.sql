-- name: may_acquire
SELECT has_schema_privilege('message_store', 'USAGE')
       AND has_function_privilege('message_store.acquire_lock(varchar)', 'EXECUTE')

-- name: set_path
SET LOCAL search_path = message_store, pg_temp

-- name: acquire
SELECT message_store.acquire_lock(name) FROM unnest(%s::varchar[]) AS name

-- name: are_locked
-- A lock whose key is one number shows its halves, and 1 beside them.
SELECT bool_and(EXISTS (
  SELECT FROM pg_locks l
  WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid() AND l.granted
    AND l.mode = 'ExclusiveLock' AND l.objsubid = 1
    AND (l.classid::bigint << 32 | l.objid::bigint)
        = message_store.hash_64(message_store.category(name))))
FROM unnest(%s::varchar[]) AS name
