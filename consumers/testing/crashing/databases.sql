-- name: has_store
SELECT to_regclass('message_store.messages') IS NOT NULL

-- name: has_messages
SELECT EXISTS (SELECT FROM message_store.messages)

-- name: number_from
SELECT setval('message_store.messages_global_position_seq', %s)

-- name: stable_messages
-- The id of a copy is random, of version 7; all other ids are those that were asked for. A message
-- is stored within the second before the database was made, and no two in the same microsecond.
CREATE FUNCTION reservation.crash_kit() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF substr(NEW.id::text, 15, 1) = '7' THEN
    NEW.id := md5(NEW.stream_name || '/' || NEW.position)::uuid;
  END IF;
  NEW.time := date_trunc('second', (
      SELECT installed_at AT TIME ZONE 'utc' FROM reservation.crash_kit_made
    )) - make_interval(secs => 1)
    + make_interval(secs => ('x' || substr(md5(NEW.id::text), 1, 8))::bit(32)::bigint
        % 1000000 / 1000000.0);
  RETURN NEW;
END
$$;

CREATE TABLE reservation.crash_kit_made AS SELECT now() AS installed_at

-- name: stable_trigger
CREATE TRIGGER crash_kit BEFORE INSERT ON message_store.messages
FOR EACH ROW EXECUTE FUNCTION reservation.crash_kit()

-- name: set_by_defaults
-- The columns of the user's tables that are filled by a default which is no constant.
CREATE TABLE reservation.crash_kit_defaults AS
SELECT a.attrelid::regclass::text AS name, a.attname::text AS field
FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
WHERE c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
  AND n.nspname NOT IN ('message_store', 'reservation', 'pg_catalog', 'information_schema')
  AND n.nspname NOT LIKE 'pg\_t%'
  AND (a.attidentity <> '' OR a.attgenerated = '' AND EXISTS (
    SELECT FROM pg_depend p JOIN pg_proc f ON f.oid = p.refobjid
    WHERE p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid
      AND p.refclassid = 'pg_proc'::regclass AND f.provolatile <> 'i'
  ) OR pg_get_expr(d.adbin, d.adrelid) ~* '(nextval|now|random|clock_timestamp|uuid|CURRENT_|LOCALTIME)')

-- name: waits
SELECT EXISTS (
  SELECT FROM pg_stat_activity
  WHERE datname = %s AND cardinality(pg_blocking_pids(pid)) > 0
)

-- name: sessions
SELECT count(*) FROM pg_stat_activity WHERE datname = %s
