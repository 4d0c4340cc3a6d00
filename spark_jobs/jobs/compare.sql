-- name: files
-- What has the rows of a table: the table itself, or its partitions, and how many pages each has.
WITH RECURSIVE parts(oid) AS (
  SELECT c.oid FROM pg_class c
  WHERE c.relname = %(table)s AND c.relnamespace = to_regnamespace(quote_ident(%(schema)s))
  UNION
  SELECT i.inhrelid FROM pg_inherits i
  JOIN parts ON i.inhparent = parts.oid
  JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT n.nspname::text, c.relname::text,
       pg_relation_size(c.oid) / current_setting('block_size')::integer
FROM parts
JOIN pg_class c USING (oid)
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind <> 'p'
ORDER BY 1, 2

-- name: rows
-- The rows in some pages of a table: a digest of the key and one of all of it, and where each is. Equal
-- values have the same digest, also in a type that each schema has of its own.
SELECT left(encode(sha256(convert_to({key_text}, 'UTF8')), 'hex'), 32) AS key,
       left(encode(sha256(convert_to({row_text} || r.nulls, 'UTF8')), 'hex'), 32) AS digest,
       r.relation, r.place
FROM (
  SELECT jsonb_build_array({key})::text AS key, to_jsonb(t.*)::text AS "row", {nulls}::text AS nulls,
         t.tableoid::bigint AS relation, t.ctid::text AS place
  FROM ONLY {table} AS t
  WHERE {pages}
  OFFSET 0
) AS r

-- name: pages
t.ctid >= {first}::tid AND t.ctid < {end}::tid

-- name: pages_to_the_end
t.ctid >= {first}::tid
