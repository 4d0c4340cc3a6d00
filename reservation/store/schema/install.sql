-- name: is_ours
-- Message DB's function for categories is of the default cost.
SELECT proisstrict AND procost = 2000 FROM pg_proc
WHERE oid = to_regprocedure('message_store.category(varchar)')

-- name: may_use_messages
SELECT has_table_privilege('message_store.messages', 'SELECT')
       AND has_table_privilege('message_store.messages', 'INSERT')
       AND has_schema_privilege('message_store', 'USAGE')
       AND coalesce(has_sequence_privilege(
             pg_get_serial_sequence('message_store.messages', 'global_position'),
             'USAGE, UPDATE'), true),
       current_user

-- name: functions
SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = 'reservation'::regnamespace

-- name: positions
SELECT consumer, category, min(position) FROM reservation.positions
GROUP BY consumer, category
ORDER BY consumer, category

-- name: scheduled
SELECT count(*) FROM reservation.scheduled WHERE cancelled_at IS NULL

-- name: running
-- Consumers by the name that they give their connections. Readers of ours have the two others.
SELECT DISTINCT application_name FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
  AND application_name LIKE 'reservation %'
  AND application_name NOT IN ('reservation snapshot', 'reservation spark')
ORDER BY application_name

-- name: look_again
-- A session that its client has closed is there for a moment longer.
SELECT pg_stat_clear_snapshot(), pg_sleep(0.05)

-- name: lock
SET LOCAL lock_timeout = '10s';
LOCK TABLE reservation.leases, reservation.moves IN ACCESS EXCLUSIVE MODE

-- name: dependents
-- What DROP … CASCADE would remove besides the schema's own objects: triggers, views and whatever
-- else refers to one of these, and what refers to that.
WITH RECURSIVE removed(classid, objid) AS (
  SELECT classid, objid FROM pg_depend
  WHERE refclassid = 'pg_namespace'::regclass AND refobjid = to_regnamespace('reservation')
  UNION
  SELECT next.classid, next.objid
  FROM removed
  CROSS JOIN LATERAL (
    SELECT classid, objid FROM pg_depend
    WHERE refclassid = removed.classid AND refobjid = removed.objid AND deptype IN ('n', 'a', 'i')
    UNION ALL  -- a view is removed with its rule
    SELECT refclassid, refobjid FROM pg_depend
    WHERE classid = removed.classid AND objid = removed.objid AND deptype = 'i'
  ) AS next(classid, objid)
)
SELECT DISTINCT object.type || ' ' || object.identity
FROM removed CROSS JOIN LATERAL pg_identify_object(classid, objid, 0) AS object
WHERE object.schema IS DISTINCT FROM 'reservation'
  AND object.type NOT IN ('rule', 'schema', 'type')  -- a rule and a type go with their view
  AND coalesce(object.schema, '') <> 'pg_toast'
  AND object.identity NOT LIKE '% on reservation.%'
  AND object.identity NOT LIKE 'for reservation.%'
ORDER BY 1

-- name: version
SELECT coalesce(max(version), 0) FROM reservation.versions

-- name: record_version
INSERT INTO reservation.versions (version) VALUES (%s)
