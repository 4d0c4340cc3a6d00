-- name: messages
SELECT stream_name, position, global_position, id::text, type,
       coalesce(data, 'null')::text, coalesce(metadata, 'null')::text
FROM message_store.messages
ORDER BY global_position

-- name: positions
SELECT to_jsonb(k)::text FROM (
  SELECT consumer, category, partition, position FROM reservation.positions
) AS k

-- name: processed
SELECT to_jsonb(k)::text FROM (
  SELECT h.consumer, h.type, p.key, p.time, p.global_position
  FROM reservation.processed_messages p JOIN reservation.processed_handlers h USING (handler)
) AS k

-- name: revisions
SELECT to_jsonb(r)::text FROM reservation.revisions r

-- name: states
SELECT to_jsonb(k)::text FROM (
  SELECT stream_name, position, message_id, category, global_position, base, state, outputs
  FROM reservation.states
) AS k

-- name: passes
SELECT (to_jsonb(p) - 'passed_at')::text FROM reservation.passes p

-- name: scheduled
SELECT to_jsonb(k)::text FROM (
  SELECT id, due_at, stream_name, type, data, metadata, cancelled_at IS NOT NULL AS cancelled
  FROM reservation.scheduled
) AS k

-- name: dead_letters
-- A message that was handled at a later attempt is as good as one that was handled at the first.
SELECT to_jsonb(k)::text FROM (
  SELECT consumer, category, global_position, message_id, stream_name, type, entity, state
  FROM reservation.dead_letters
  WHERE state <> 'handled'
) AS k

-- name: tables
-- The user's own tables, each with its columns that a default fills.
SELECT n.nspname, c.relname,
       ARRAY(SELECT d.field FROM reservation.crash_kit_defaults d
             WHERE d.name = c.oid::regclass::text)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND n.nspname NOT IN ('message_store', 'reservation', 'pg_catalog', 'information_schema')
  AND n.nspname NOT LIKE 'pg\_t%'
ORDER BY 1, 2
