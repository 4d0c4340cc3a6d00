-- The grammar of stream names, and the hash that locks and groups go by. Bodies are parsed when
-- they are created, so no search_path can change what they mean, and the planner inlines them.

CREATE OR REPLACE FUNCTION message_store.id(stream_name varchar) RETURNS varchar
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN strpos(stream_name, '-') > 0
            THEN substr(stream_name, strpos(stream_name, '-') + 1) END;

CREATE OR REPLACE FUNCTION message_store.cardinal_id(stream_name varchar) RETURNS varchar
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN strpos(stream_name, '-') > 0
            THEN split_part(substr(stream_name, strpos(stream_name, '-') + 1), '+', 1) END;

CREATE OR REPLACE FUNCTION message_store.category(stream_name varchar) RETURNS varchar
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN split_part(stream_name, '-', 1);

-- Message DB takes NULL for a category: reading a stream of no name is an error, a category is not.
CREATE OR REPLACE FUNCTION message_store.is_category(stream_name varchar) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(strpos(stream_name, '-') = 0, true);

CREATE OR REPLACE FUNCTION message_store.hash_64(value varchar) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN left('x' || md5(value), 17)::bit(64)::bigint;

CREATE OR REPLACE FUNCTION message_store.message_store_version() RETURNS varchar
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN '1.3.0';
