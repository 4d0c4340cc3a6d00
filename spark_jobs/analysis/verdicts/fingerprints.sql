-- The columns of the fingerprints, each computed from a row `m` of the log. Equal values have equal
-- hashes. Values that are equal in meaning may have different hashes; their messages are then judged row
-- by row. The seed is random in each run, so that no sender can know which texts have the same hash.

-- name: type
(CASE m.type {numbers} END)::integer

-- name: key_of_command
hashtextextended({key_category} || E'\n' || {key_stream}, {seed})

-- name: key_of_stream
hashtextextended({category} || E'\n' || m.stream_name, {seed})

-- name: says
-- The type, the version of its shape, and the content.
hashtextextended(m.type || ' ' || coalesce({version}, '') || ' ' || coalesce(m.kept_text, ''), {seed})

-- name: kind
-- The type counts under the name that it has today.
CASE WHEN {starts}
     THEN hashtextextended(m.stream_name || ' ' || CASE m.type {own_names} ELSE m.type END, {seed}) END

-- name: cardinal
-- Decides the partition of the stream; needed only if some partitions have read the message and others not.
CASE WHEN m.global_position BETWEEN {first} AND {last} AND strpos(m.stream_name, '-') > 0
     THEN ('x' || left(md5(split_part(substr(m.stream_name, strpos(m.stream_name, '-') + 1), '+', 1)), 16)
          )::bit(64)::bigint END

-- name: identity
hashtextextended(m.stream_name || ' ' || m.position || ' ' || m.id, {seed})
