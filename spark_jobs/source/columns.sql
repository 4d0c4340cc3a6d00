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
reservation.readable_type(m.type)::text

-- name: id
m.id::text

-- name: time
-- What is not of the years 1 to 9999 is on their first or last day.
greatest(least(m.time, '9999-12-31'), '0001-01-01') AT TIME ZONE 'UTC'

-- name: data
reservation.readable_text(m.data)::text

-- name: metadata
reservation.readable_text(m.metadata)::text

-- name: causation
-- What `reservation.causation` gives. Most are numbers, and matching a text takes long. A number with
-- decimals names no message, even if they are zeros.
CASE jsonb_typeof(m.metadata->'causationMessageGlobalPosition')
  WHEN 'number' THEN CASE WHEN (m.metadata->'causationMessageGlobalPosition')::numeric BETWEEN 0 AND 1e18 - 1
                           AND scale((m.metadata->'causationMessageGlobalPosition')::numeric) = 0
                          THEN (m.metadata->'causationMessageGlobalPosition')::bigint END
  WHEN 'string' THEN CASE WHEN m.metadata->>'causationMessageGlobalPosition' ~ '^[0-9]{{1,18}}$'
                          THEN (m.metadata->>'causationMessageGlobalPosition')::bigint END
END

-- name: sender
-- Whom the message belongs to, or who wants the reply.
message_store.category(coalesce(m.metadata->>'correlationStreamName', m.metadata->>'replyStreamName'))::text

-- name: entity_id
-- The id of the entity that a command or a subscribed message names, as it stands in the data.
m.data->>{id}

-- name: entity_data
-- Data is transferred only where the component's own code finds a message's entity.
CASE WHEN (CASE {category} {decoded} END)::boolean THEN m.data::text END

-- name: is_decoded
WHEN {category} THEN m.type = ANY ({types})

-- name: id_by_category
-- Messages of subscribed categories name it in fields of their own; one that a function gives is not known.
(CASE {category} {ids} ELSE {id} END)

-- name: is_subscribed
-- Whether the component handles it, of another category.
coalesce((CASE {category} {taken} END)::boolean, false)

-- name: is_from
m.global_position >= {from_position}

-- name: is_correlated
-- Its correlation leads back to the component.
message_store.category(m.metadata->>'correlationStreamName') = {correlated}

-- name: key_category
CASE m.type {key_categories} END

-- name: key_stream
-- The stream that the key names, computed here so that the payload stays in the server.
CASE m.type {key_streams} END

-- name: function_data
-- Only where the key is a function, or has a default that the data may leave out, does it travel.
CASE WHEN m.type = ANY ({by_function}) THEN reservation.readable_text(m.data)::text END

-- name: version
-- The version of the message's shape, as JSON, and the same for equal numbers; NULL without one.
CASE jsonb_typeof(m.metadata->'schemaVersion')
  WHEN 'number' THEN trim_scale((m.metadata->'schemaVersion')::numeric)::text
  WHEN 'string' THEN (m.metadata->'schemaVersion')::text
END

-- name: content
-- A digest of the data without the ignored fields: the first 128 bits of SHA-256 over its text.
coalesce(left(encode(sha256(convert_to({canonical}, 'UTF8')), 'hex'), 32), '')

-- name: canonical
-- The text of the data without the ignored fields. Of data that is too large to be read it is one of its hash.
CASE WHEN starts_with(m.kept_text, 'unreadable: ') THEN m.kept_text || jsonb_hash_extended(m.kept, 0)
     ELSE {of_kept} END

-- name: same_of_equal
-- The text of a jsonb is the same for equal values but for the trailing zeros of numbers, which are removed.
-- Strings are matched first, so that nothing within them is taken for a number.
CASE WHEN strpos({text}, '.') > 0 AND {text} ~ '\.[0-9]*0($|[],}}])'
     THEN regexp_replace({text},
            '("(?:[^"\\]|\\.)*")|(\.[0-9]*[1-9])0+(?![0-9])|\.0+(?![0-9])', '\1\2', 'g')
     ELSE {text} END

-- name: kept
CASE WHEN jsonb_typeof(m.data) = 'object' THEN m.data - CASE m.type {ignoring} ELSE '{{}}'::text[] END
     ELSE m.data END

-- name: key_name
-- A name that a stream can have; NULL for one that the consumers refuse too.
(SELECT k.name FROM (SELECT {name} AS name OFFSET 0) AS k
 WHERE octet_length(k.name) <= {most} AND k.name !~ {control})

-- name: part_string
-- One part of a key that is declared as a text; NULL where it is none, or cannot name a stream.
CASE WHEN jsonb_typeof(m.data->{field}) = 'string' AND m.data->>{field} <> ''
      AND ({plus_allowed} OR strpos(m.data->>{field}, '+') = 0)
     THEN m.data->>{field} END

-- name: part_number
-- One that is declared as a whole number.
CASE WHEN jsonb_typeof(m.data->{field}) = 'number' AND m.data->>{field} ~ '^-?[0-9]+$'
     THEN m.data->>{field} END

-- name: starts
-- Whether an event can start its entity's stream: a pseudo event cannot, unless it is the rejection of a
-- command that initiates.
(m.type <> 'PseudoEvent' OR coalesce(m.data->'initiation' = 'true', false))

-- name: is_first
-- Whether it is the first of its stream, or the first event after nothing but rejections of other commands,
-- which then says so itself.
(m.position = 0 OR coalesce(m.metadata->'localProperties'->'first' = to_jsonb(m.position), false))
