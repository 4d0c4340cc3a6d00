-- Expressions that several statements share, in bodies that the planner inlines: it would not do so
-- with a subquery in one, or with a function less stable than the whole is said to be.

-- Whether a stream is read by a member of a consumer group: by the hash of its cardinal id.
CREATE OR REPLACE FUNCTION reservation.is_of_member(
  stream_name text, member bigint, size bigint
) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN strpos(stream_name, '-') > 0
   AND mod(abs(message_store.hash_64(
         split_part(substr(stream_name, strpos(stream_name, '-') + 1), '+', 1))), size) = member;

-- The partition that a stream is in, where a group has so many: by the hash of its cardinal id, 0 if it
-- has no id. The same as above, but for an id whose hash has no absolute value.
CREATE OR REPLACE FUNCTION reservation.partition_of(
  stream_name text, size integer
) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN strpos(stream_name, '-') = 0 THEN 0 ELSE
  abs(mod(message_store.hash_64(
    split_part(substr(stream_name, strpos(stream_name, '-') + 1), '+', 1)), size))::integer END;

-- Whether a stream is in one of these partitions, and its message was not handled when there were
-- others: `former_positions` is how far that went in each, NULL where they were never changed.
CREATE OR REPLACE FUNCTION reservation.is_in_part(
  stream_name text, global_position bigint, partitions integer[], size integer, former_positions bigint[]
) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN reservation.partition_of(stream_name, size) = ANY (partitions)
   AND (former_positions IS NULL OR global_position
        > former_positions[1 + reservation.partition_of(stream_name, cardinality(former_positions))]);

-- The metadata of a message that follows another: its causation points there, and what belongs to
-- the whole conversation is handed on.
CREATE OR REPLACE FUNCTION reservation.followed_metadata(
  stream_name text, "position" bigint, global_position bigint, metadata jsonb
) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE
RETURN jsonb_build_object(
    'causationMessageStreamName', stream_name,
    'causationMessagePosition', "position",
    'causationMessageGlobalPosition', global_position
  ) || CASE WHEN jsonb_typeof(metadata) = 'object' THEN
    CASE WHEN jsonb_typeof(metadata->'correlationStreamName') = 'string' THEN
      jsonb_build_object('correlationStreamName', metadata->'correlationStreamName')
    ELSE '{}' END
    || CASE WHEN jsonb_typeof(metadata->'replyStreamName') = 'string' THEN
      jsonb_build_object('replyStreamName', metadata->'replyStreamName')
    ELSE '{}' END
    || CASE WHEN jsonb_typeof(metadata->'properties') = 'object'
             AND metadata->'properties' <> '{}' THEN
      jsonb_build_object('properties', metadata->'properties')
    ELSE '{}' END
  ELSE '{}' END;

-- The global position of the message that another follows; NULL if its metadata names none.
CREATE OR REPLACE FUNCTION reservation.causation(metadata jsonb) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN metadata->>'causationMessageGlobalPosition' ~ '^[0-9]{1,18}$'
            THEN (metadata->>'causationMessageGlobalPosition')::bigint END;

-- What two sends of one intent have in common: the data less the fields that may vary.
CREATE OR REPLACE FUNCTION reservation.content(data jsonb, volatile_fields text[]) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN jsonb_typeof(data) = 'object' THEN data - volatile_fields ELSE data END;

-- The version of a message's shape, as its metadata has it; NULL if it has none.
CREATE OR REPLACE FUNCTION reservation.schema_version(metadata jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN jsonb_typeof(metadata->'schemaVersion') IN ('string', 'number')
            THEN metadata->'schemaVersion' END;

-- The metadata of a message less the trace that it was sent in, which is no part of what it says: a
-- sender that writes it again may do so in another one. NULL if there is nothing else.
CREATE OR REPLACE FUNCTION reservation.untraced(metadata jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN jsonb_typeof(metadata->'properties') = 'object' THEN
    nullif(
      CASE WHEN (metadata->'properties') - ARRAY['traceparent', 'tracestate'] = '{}'
           THEN metadata - 'properties'
           ELSE metadata || jsonb_build_object(
             'properties', (metadata->'properties') - ARRAY['traceparent', 'tracestate']) END,
      '{}')
  ELSE metadata END;

-- Whether a message of an entity's stream starts it, if it is the first that does. A pseudo event does
-- not, unless it is the rejection of a command that was to start the stream.
CREATE OR REPLACE FUNCTION reservation.starts(type text, data jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN type <> 'PseudoEvent' OR coalesce(data->'initiation' = 'true', false);

-- The metadata of a copy: it follows its command, has the data of it, and so the version of its shape.
CREATE OR REPLACE FUNCTION reservation.copied_metadata(
  stream_name text, "position" bigint, global_position bigint, metadata jsonb
) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE
RETURN reservation.followed_metadata(stream_name, "position", global_position, metadata)
  || CASE WHEN reservation.schema_version(metadata) IS NOT NULL
          THEN jsonb_build_object('schemaVersion', metadata->'schemaVersion') ELSE '{}' END;
