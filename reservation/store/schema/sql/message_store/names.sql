-- The grammar of stream names, and the hash that locks and groups go by. In PL/pgSQL, which costs less for
-- each call than SQL does. They name all in full, so no search_path can change what they mean.

CREATE OR REPLACE FUNCTION message_store.id(stream_name varchar) RETURNS varchar
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
  dash integer := pg_catalog.strpos(stream_name, '-');
BEGIN
  RETURN CASE WHEN dash OPERATOR(pg_catalog.>) 0
              THEN pg_catalog.substr(stream_name, dash OPERATOR(pg_catalog.+) 1) END;
END
$$;

CREATE OR REPLACE FUNCTION message_store.cardinal_id(stream_name varchar) RETURNS varchar
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
  dash integer := pg_catalog.strpos(stream_name, '-');
BEGIN
  RETURN CASE WHEN dash OPERATOR(pg_catalog.>) 0 THEN pg_catalog.split_part(
    pg_catalog.substr(stream_name, dash OPERATOR(pg_catalog.+) 1), '+', 1) END;
END
$$;

-- A planner that took it for cheap would rather look through the log for the next messages of a category than
-- use the index for them. So the cost is more than that of reading a page.
CREATE OR REPLACE FUNCTION message_store.category(stream_name varchar) RETURNS varchar
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE COST 2000
AS $$
BEGIN
  RETURN pg_catalog.split_part(stream_name, '-', 1);
END
$$;

-- Message DB takes NULL for a category: reading a stream of no name is an error, a category is not.
CREATE OR REPLACE FUNCTION message_store.is_category(stream_name varchar) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
  RETURN coalesce(pg_catalog.strpos(stream_name, '-') OPERATOR(pg_catalog.=) 0, true);
END
$$;

CREATE OR REPLACE FUNCTION message_store.hash_64(value varchar) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
  RETURN pg_catalog.left('x' OPERATOR(pg_catalog.||) pg_catalog.md5(value), 17)
         ::pg_catalog.bit(64)::bigint;
END
$$;

CREATE OR REPLACE FUNCTION message_store.message_store_version() RETURNS varchar
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
  RETURN '1.3.0';
END
$$;
