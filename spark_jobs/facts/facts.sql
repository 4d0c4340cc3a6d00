-- The columns of a fact, each computed from a row `m` of the log. What is text in the log is a hash here: equal
-- texts have equal hashes, and the seed is drawn at random, so that no sender can know which texts collide.

-- name: code
CASE m.type {codes} ELSE {otherwise} END

-- name: code_of_subscribed
CASE WHEN {is_subscribed} THEN {subscribed} ELSE {otherwise} END

-- name: code_of_event
CASE WHEN NOT {starts} THEN {pseudo} WHEN {initiates} AND {is_first} THEN {start} ELSE {event} END

-- name: key_of_command
hashtextextended({key_category} || E'\n' || {key_stream}, {seed})

-- name: key_of_stream
hashtextextended({category} || E'\n' || m.stream_name, {seed})

-- name: key_of_start
CASE WHEN {initiates} AND {starts} AND {is_first} THEN hashtextextended({category} || E'\n' || m.stream_name, {seed}) END

-- name: digest
-- The type, the version of its shape, and the content.
hashtextextended(m.type || ' ' || coalesce({version}, '') || ' ' || coalesce({canonical}, ''), {seed})

-- name: kind
-- The stream and the type, which counts under the name that it has today.
CASE WHEN {starts}
     THEN hashtextextended(m.stream_name || ' ' || CASE m.type {own_names} ELSE m.type END, {seed}) END

-- name: cardinal
-- The hash of the cardinal id, by which the server finds the partition of a stream.
CASE WHEN m.global_position BETWEEN {first} AND {last} AND strpos(m.stream_name, '-') > 0
     THEN ('x' || left(md5(split_part(substr(m.stream_name, strpos(m.stream_name, '-') + 1), '+', 1)), 16)
          )::bit(64)::bigint END

-- name: time
(extract(epoch FROM {time}) * 1000000)::bigint

-- name: passes
-- The messages of a subscribed category that were handled, and that no event followed from. A pass of another log, at
-- whose position there is another message now, does not count, nor does one whose handler wrote a message that is not
-- in the log.
SELECT {columns}
FROM reservation.passes m
WHERE m.consumer = {consumer} AND m.category = {category} AND {chosen}
  AND NOT EXISTS (
    SELECT FROM message_store.messages other
    WHERE other.global_position = m.global_position AND other.id <> m.message_id)
  AND (m.follower IS NULL OR EXISTS (
    SELECT FROM message_store.messages written WHERE written.id = m.follower))
