-- Reading what a client can take. A message from before there was a bound, or from another client, may have
-- data of which the text is longer than a text can be, or a time that few languages have. Whatever reads it
-- reads these in its place:
--
--   data, metadata   a text that begins with "unreadable: ", which is no JSON and so stands in no message
--   time             NULL
--
-- The planner makes these functions a part of the query that calls them, so they have no settings of their
-- own. Only of what is large or compressed is the size looked at closely: a byte that is stored can become
-- several thousand of the text, because jsonb keeps 1e131071 in a few bytes, and compression makes that
-- 255 times as many.

-- What readable_text is of what is large or compressed. What it is made of has no more than 64 MiB if it has
-- that when it is not compressed any more, as in an array.
CREATE OR REPLACE FUNCTION reservation.readable_large_text(value jsonb) RETURNS varchar
LANGUAGE plpgsql STABLE
AS $$
DECLARE
  found pg_catalog.varchar;
BEGIN
  IF pg_catalog.pg_column_size(value) OPERATOR(pg_catalog.<=) 263172
     OR pg_catalog.pg_column_size(ARRAY[value]) OPERATOR(pg_catalog.<=) 67108864 THEN
    found := value;
    IF pg_catalog.octet_length(found) OPERATOR(pg_catalog.<=) 67108864 THEN
      RETURN found;
    END IF;
  END IF;
  RETURN 'unreadable: it takes more than 67108864 bytes';
EXCEPTION WHEN program_limit_exceeded THEN
  RETURN 'unreadable: it takes more than 67108864 bytes';
END
$$;

-- The text of data or metadata, if neither it nor what it is made of takes more than 64 MiB.
CREATE OR REPLACE FUNCTION reservation.readable_text(value jsonb) RETURNS varchar
LANGUAGE sql STABLE
RETURN CASE WHEN pg_column_size(value) > 5000 OR pg_column_compression(value) IS NOT NULL
            THEN reservation.readable_large_text(value) ELSE value::varchar END;

-- The same where many rows are read at once: of what is large or compressed it is 'large', for the caller to
-- read each such row by itself.
CREATE OR REPLACE FUNCTION reservation.readable_small_text(value jsonb) RETURNS varchar
LANGUAGE sql STABLE
RETURN CASE WHEN pg_column_size(value) > 5000 OR pg_column_compression(value) IS NOT NULL
            THEN 'large' ELSE value::varchar END;

-- A type of which nobody has declared so long a one is cut off.
CREATE OR REPLACE FUNCTION reservation.readable_type(value text) RETURNS varchar
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN octet_length(value) > 10000 THEN left(value, 300) || '...' ELSE value END;

-- A time of the years 1 to 9999.
CREATE OR REPLACE FUNCTION reservation.readable_time(value timestamp) RETURNS timestamp
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value >= timestamp '0001-01-01 00:00:00' AND value < timestamp '10000-01-01 00:00:00'
            THEN value END;

-- Refuses messages of a sender of which the text of the data or the metadata is longer than that of messages that
-- are sent with the client of this package. check_names bounds the rest.
CREATE OR REPLACE FUNCTION reservation.check_sizes(
  stream_names text[], data jsonb[], metadata jsonb[]
) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
  refused record;
BEGIN
  SELECT s.stream_name, s.long INTO refused
  FROM (
    SELECT i.stream_name, i.n,
           CASE WHEN pg_column_size(i.data) > 1300 AND reservation.is_longer(i.data, 16777216)
                THEN 'data of more than 16777216 bytes of JSON'
                WHEN pg_column_size(i.metadata) > 1300 AND reservation.is_longer(i.metadata, 16777216)
                THEN 'metadata of more than 16777216 bytes of JSON' END AS long
    FROM unnest(stream_names, data, metadata) WITH ORDINALITY AS i(stream_name, data, metadata, n)
  ) AS s
  WHERE s.long IS NOT NULL
  ORDER BY s.n
  LIMIT 1;
  IF FOUND THEN
    RAISE program_limit_exceeded USING
      MESSAGE = format('A message for %s has %s, which a sender may not write',
                       left(refused.stream_name, 300), refused.long),
      HINT = 'Send what is that large by another way, and a reference to it in the message.';
  END IF;
END
$$;

CREATE OR REPLACE FUNCTION reservation.is_longer(value jsonb, bytes bigint) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN octet_length(value::text) > bytes;
EXCEPTION WHEN program_limit_exceeded THEN
  RETURN true;
END
$$;
