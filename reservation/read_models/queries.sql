-- name: lock
-- One process at a time makes the tables of a read model, or turns its views.
SELECT pg_advisory_xact_lock(hashtextextended('reservation.read_model ' || %(model)s, 0))

-- name: try_lock
SELECT pg_try_advisory_xact_lock(hashtextextended('reservation.read_model ' || %(model)s, 0))

-- name: drop_objects
-- What drops the objects of a schema, for a role that may not drop the schema because it cannot create it.
SELECT format('DROP %%s IF EXISTS %%s CASCADE', o.type, o.identity)
FROM pg_depend d
CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, 0) AS o
WHERE d.refclassid = 'pg_namespace'::regclass AND d.deptype = 'n'
  AND d.refobjid = to_regnamespace(quote_ident(%(schema)s))

-- name: schema
-- A schema: its comment, whether there is anything in it, and whether it is the role's own.
SELECT obj_description(n.oid, 'pg_namespace'),
       EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid),
       pg_has_role(n.nspowner, 'USAGE')
FROM pg_namespace n
WHERE n.nspname = %(schema)s

-- name: may_create
SELECT has_database_privilege(current_database(), 'CREATE'), current_database()::text, current_user::text

-- name: has_position
SELECT EXISTS (SELECT FROM reservation.positions p WHERE p.consumer = %(consumer)s AND p.position > 0)

-- name: lowest_position
SELECT coalesce(min(p.position), 0) FROM reservation.positions p
WHERE p.consumer = %(consumer)s AND p.category = %(category)s

-- name: is_untouched
-- Whether a version's consumers have handled nothing yet, and none runs.
SELECT NOT EXISTS (
  SELECT FROM reservation.positions p WHERE p.consumer = %(consumer)s AND p.position > 0
) AND NOT EXISTS (
  SELECT FROM reservation.members m
  WHERE m.consumer = %(consumer)s AND NOT reservation.is_gone(m.member))

-- name: versions
-- The versions that have tables, whether the views show them, and what they read, as JSON: the
-- categories, or by these their parts in an archive.
SELECT made.of[1], made.of[2]::integer,
       coalesce(obj_description(v.oid, 'pg_namespace')
                = format('Read model %%s: views of version %%s', made.of[1], made.of[2]), false),
       coalesce(made.of[3], '[]')
FROM (
  SELECT n.nspname, regexp_match(obj_description(n.oid, 'pg_namespace'),
                                 '^Read model ([a-z0-9_]+): tables of version ([0-9]+)(?: from ([[{].*[]}]))?$') AS of
  FROM pg_namespace n
) AS made
LEFT JOIN pg_namespace v ON v.nspname = made.of[1]
WHERE made.nspname = made.of[1] || '_' || made.of[2]
  AND (%(model)s::text IS NULL OR made.of[1] = %(model)s)
ORDER BY made.of[1], made.of[2]::integer

-- name: enter
SELECT set_config('search_path', quote_ident(%(schema)s), %(locally)s)

-- name: still_entered
-- An error where the search path is not that of the version any more, so that nothing is committed.
SELECT 1 / (current_setting('search_path') = quote_ident(%(schema)s::text))::integer

-- name: path
SELECT current_setting('search_path')

-- name: set_path
SELECT set_config('search_path', %(path)s, true)

-- name: create_schema
CREATE SCHEMA {schema}

-- name: comment_schema
COMMENT ON SCHEMA {schema} IS {text}

-- name: tables
-- The tables of a schema, without partitions, the columns of their primary keys, and all columns.
SELECT c.relname::text, coalesce((
         SELECT array_agg(a.attname::text ORDER BY k.n)
         FROM pg_index i
         CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k(attnum, n)
         JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
         WHERE i.indrelid = c.oid AND i.indisprimary), '{}') AS key,
       ARRAY(
         SELECT a.attname::text FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         ORDER BY a.attnum) AS columns
FROM pg_class c
WHERE c.relnamespace = to_regnamespace(quote_ident(%(schema)s))
  AND c.relkind IN ('r', 'p') AND NOT c.relispartition
ORDER BY 1

-- name: relations
-- What can be read in a schema, without partitions, with its columns in their order and their types.
SELECT c.relname::text, c.relkind::text, array_agg(a.attname::text ORDER BY a.attnum),
       array_agg(format_type(a.atttypid, a.atttypmod) || ' ' || a.attcollation ORDER BY a.attnum)
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = to_regnamespace(quote_ident(%(schema)s))
  AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
GROUP BY c.oid
ORDER BY 1

-- name: view
-- What a view has beside its query: its owner, its comment and its options.
SELECT pg_get_userbyid(c.relowner)::text, obj_description(c.oid, 'pg_class'), coalesce(c.reloptions, '{}')
FROM pg_class c
WHERE c.oid = to_regclass(format('%%I.%%I', %(schema)s::text, %(view)s::text))

-- name: rights
-- The rights on a view, and on its columns.
SELECT coalesce(pg_get_userbyid(nullif(r.grantee, 0))::text, ''), r.privilege_type, r.is_grantable, r.name
FROM (
  SELECT a.*, NULL::text AS name
  FROM pg_class c, aclexplode(c.relacl) AS a
  WHERE c.oid = to_regclass(format('%%I.%%I', %(schema)s::text, %(view)s::text))
    AND a.grantee <> c.relowner
  UNION ALL
  SELECT a.*, t.attname::text
  FROM pg_attribute t, aclexplode(t.attacl) AS a
  WHERE t.attrelid = to_regclass(format('%%I.%%I', %(schema)s::text, %(view)s::text))
    AND NOT t.attisdropped
) AS r
WHERE r.grantee = 0 OR EXISTS (SELECT FROM pg_roles o WHERE o.oid = r.grantee)
ORDER BY 4 NULLS FIRST, 1, 2

-- name: create_view
CREATE OR REPLACE VIEW {view} {options} AS SELECT {columns} FROM {table}

-- name: drop_view
DROP VIEW {view}

-- name: own_view
ALTER VIEW {view} OWNER TO {owner}

-- name: comment_view
COMMENT ON VIEW {view} IS {text}

-- name: grant_view
GRANT {right} ON {view} TO {role} {option}

-- name: drop_schema
DROP SCHEMA {schema} CASCADE

-- name: shows
-- Whether the consumers of the version that the views show have handled what is stored up to a position,
-- and none of it is an open dead letter.
WITH given AS (
  SELECT %s::text AS model, %s::text AS declared, %s::text[] AS categories, %s::bigint AS "position"
), shown AS (
  SELECT i.*, i.model || '_' || substring(
           obj_description(to_regnamespace(quote_ident(i.model)), 'pg_namespace')
           FROM '^Read model [a-z0-9_]+: views of version ([0-9]+)$') AS consumer
  FROM given i
), parts AS (
  SELECT c.category, g.partitions, p.partition, p.position, s.position AS until
  FROM shown s
  CROSS JOIN LATERAL (
    SELECT g.category FROM reservation.groups g WHERE g.consumer = s.consumer
    UNION
    SELECT unnest(s.categories) WHERE s.consumer = s.declared
  ) AS c
  LEFT JOIN reservation.groups g ON g.consumer = s.consumer AND g.category = c.category
  LEFT JOIN reservation.positions p ON p.consumer = s.consumer AND p.category = c.category
)
SELECT coalesce(bool_and(CASE
  WHEN p.position IS NULL THEN false
  WHEN p.position >= p.until THEN true
  ELSE NOT EXISTS (
    SELECT FROM reservation.read_part(
      p.category, p.position + 1, p.until, 1, ARRAY[p.partition], p.partitions, NULL, NULL))
  END), false) AND NOT EXISTS (
    SELECT FROM reservation.dead_letters d
    JOIN shown s ON s.consumer = d.consumer AND d.global_position <= s.position
    WHERE d.state IN ('waiting', 'parked', 'dead'))
FROM parts p
