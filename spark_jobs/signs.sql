-- The columns of the signs, each as it is taken from a row `m` of the log. Hashes are equal where what
-- they stand for is; where they are not, it may still be, and then more is looked at.

-- name: type
CASE m.type {numbers} END

-- name: is_first
m.position = 0

-- name: key_of_command
hashtextextended({key_category} || E'\n' || CASE WHEN {is_copy} THEN m.stream_name::text ELSE {key_stream} END, 0)

-- name: key_of_stream
hashtextextended({category} || E'\n' || m.stream_name, 0)

-- name: says
-- The type and the content.
hashtextextended(m.type || ' ' || m.kept_text, 0)

-- name: kind
CASE WHEN m.type <> {pseudo_event} THEN hashtextextended(m.stream_name || ' ' || m.type, 0) END
