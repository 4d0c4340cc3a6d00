-- The columns of the source, each as it is taken from a row `m` of the log.

-- name: category
{category}::text

-- name: global_position
m.global_position

-- name: position
m.position

-- name: stream_name
m.stream_name::text

-- name: type
m.type::text

-- name: id
m.id::text

-- name: time
m.time AT TIME ZONE 'UTC'

-- name: data
m.data::text

-- name: metadata
m.metadata::text

-- name: causation
-- Most are numbers, and those that are not are looked at closely, which takes long.
CASE jsonb_typeof(m.metadata->'causationMessageGlobalPosition')
  WHEN 'number' THEN CASE WHEN (m.metadata->'causationMessageGlobalPosition')::numeric BETWEEN 0 AND 1e18
                          THEN (m.metadata->'causationMessageGlobalPosition')::bigint END
  WHEN 'string' THEN CASE WHEN m.metadata->>'causationMessageGlobalPosition' ~ '^[0-9]{{1,18}}$'
                          THEN (m.metadata->>'causationMessageGlobalPosition')::bigint END
END

-- name: sender
-- Whom the message belongs to, or who wants the reply.
message_store.category(coalesce(m.metadata->>'correlationStreamName', m.metadata->>'replyStreamName'))::text

-- name: key_category
CASE m.type {key_categories} END

-- name: key_stream
-- The stream that the key names, computed here so that the payload stays in the server.
CASE m.type {key_streams} END

-- name: is_copy
-- Of types that are reserved within the command category, it holds the copies too.
coalesce(m.type = ANY ({within}) AND m.metadata->'localProperties'->'reserved' = 'true', false)

-- name: function_data
-- Only where the key is a function, or has a default that the data may leave out, does it travel.
CASE WHEN m.type = ANY ({by_function}) THEN m.data::text END

-- name: content
-- Stands for the data less the volatile fields: jsonb's own hash, equal where jsonb calls two values
-- equal, as the consumers do, and the shape of what is nested, which the hash does not tell:
-- [["a","b"]] from [["a"],"b"].
jsonb_hash_extended(m.kept, 0)::text ||
  CASE WHEN strpos(substr(m.kept_text, 2), '{{') = 0 AND strpos(substr(m.kept_text, 2), '[') = 0 THEN ''
       ELSE ',' || md5(regexp_replace(
              regexp_replace(m.kept_text, '"(?:[^"\\]|\\.)*"', 's', 'g'),
              '[-+.0-9eE]*[0-9][-+.0-9eE]*', 'n', 'g')) END

-- name: kept
CASE WHEN jsonb_typeof(m.data) = 'object' THEN m.data - CASE m.type {volatile} ELSE '{{}}'::text[] END
     ELSE coalesce(m.data, 'null') END

-- name: part
-- One part of a key; NULL where it can not name a stream.
CASE jsonb_typeof(m.data->{field})
  WHEN 'string' THEN CASE WHEN m.data->>{field} <> '' AND ({plus_allowed} OR strpos(m.data->>{field}, '+') = 0)
                          THEN m.data->>{field} END
  WHEN 'number' THEN CASE WHEN (m.data->>{field})::numeric % 1 = 0 THEN m.data->>{field} END
END

-- name: beneath
-- The stream of a copy in the command category.
m.stream_name || CASE WHEN strpos(m.stream_name, '-') = 0 THEN '-' ELSE '+' END
