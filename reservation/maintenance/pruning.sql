-- name: reservations
-- Looks at the next messages of a reservation category, and removes those streams of theirs that may
-- go. A stream with a message that a consumer stands at stays: its absence is the sign of a store that
-- was replaced. Returns the position to go on after, NULL at the end: where the category ends, where its
-- consumer is, or where a whole portion is too young.
WITH handled AS MATERIALIZED (
  SELECT reservation.dealt_with(%(category)s, %(consumer)s) AS up_to
), stood_at AS MATERIALIZED (
  SELECT s.position FROM reservation.stood_at(%(category)s) AS s(position)
), portion AS MATERIALIZED (
  SELECT m.global_position, m.stream_name,
         m.time < clock_timestamp() AT TIME ZONE 'utc' - %(older_than)s::interval AS is_old
  FROM message_store.messages m
  WHERE (message_store.category(m.stream_name), m.global_position)
        > (%(category)s, %(after)s::bigint)
    AND (message_store.category(m.stream_name), m.global_position)
        <= (%(category)s, (SELECT h.up_to FROM handled h))
  ORDER BY message_store.category(m.stream_name), m.global_position
  LIMIT %(limit)s
), to_go AS MATERIALIZED (
  SELECT DISTINCT p.stream_name
  FROM portion p
  WHERE p.is_old
    AND NOT EXISTS (
      SELECT FROM message_store.messages m, handled h
      WHERE m.stream_name = p.stream_name
        AND (m.global_position > h.up_to
             OR m.time >= clock_timestamp() AT TIME ZONE 'utc' - %(older_than)s::interval
             OR m.global_position IN (SELECT s.position FROM stood_at s)))
    AND NOT EXISTS (
      SELECT FROM reservation.dead_letters d
      WHERE d.consumer = %(consumer)s AND d.category = %(category)s
        AND d.stream_name = p.stream_name AND (d.state IN ('waiting', 'parked', 'dead') OR d.data IS NOT NULL))
), gone AS (
  DELETE FROM message_store.messages m
  USING to_go t
  WHERE %(apply)s AND m.stream_name = t.stream_name
)
SELECT CASE WHEN (SELECT count(*) FILTER (WHERE p.is_old) > 0 AND count(*) = %(limit)s FROM portion p)
            THEN (SELECT max(p.global_position) FROM portion p) END,
       (SELECT count(*) FROM to_go)

-- name: cancelled
-- Removes scheduled messages that were cancelled long ago, or counts them.
WITH to_go AS MATERIALIZED (
  SELECT s.number FROM reservation.scheduled s
  WHERE s.cancelled_at < clock_timestamp() - %(older_than)s::interval
  LIMIT CASE WHEN %(apply)s THEN %(limit)s::bigint END
), gone AS (
  DELETE FROM reservation.scheduled s USING to_go t WHERE %(apply)s AND s.number = t.number
)
SELECT count(*) FROM to_go

-- name: stopped_series
-- Removes series that were stopped long ago, or counts them.
WITH to_go AS MATERIALIZED (
  SELECT s.component, s.name FROM reservation.series s
  WHERE s.stopped_at < clock_timestamp() - %(older_than)s::interval
), gone AS (
  DELETE FROM reservation.series s USING to_go t
  WHERE %(apply)s AND (s.component, s.name) = (t.component, t.name) AND s.stopped_at IS NOT NULL
)
SELECT count(*) FROM to_go

-- name: http_requests
-- Removes some of the requests that are old enough, or counts all of them.
WITH to_go AS MATERIALIZED (
  SELECT h.role, h.id
  FROM reservation.http_requests h
  WHERE h.created_at < clock_timestamp() - %(older_than)s::interval
  ORDER BY h.created_at
  LIMIT CASE WHEN %(apply)s THEN %(limit)s::bigint END
), gone AS (
  DELETE FROM reservation.http_requests h
  USING to_go t
  WHERE %(apply)s AND h.role = t.role AND h.id = t.id
  RETURNING 1
)
SELECT CASE WHEN %(apply)s THEN (SELECT count(*) FROM gone) ELSE (SELECT count(*) FROM to_go) END

-- name: compared
-- Messages of an archive that the store has too, and whether they are the same in all that a message is.
-- Each value is hashed with its length before it, so that nothing can pass from one into the next.
archived AS MATERIALIZED (
  SELECT * FROM unnest(%(global_positions)s::bigint[], %(digests)s::text[])
         AS a(global_position, digest)
), compared AS MATERIALIZED (
  SELECT m.global_position, m.stream_name, m.position, a.digest, {digest} = a.digest AS is_archived
  FROM archived a
  JOIN message_store.messages m USING (global_position)
)

-- name: digest
encode(sha256(convert_to(concat({values}), 'UTF8')), 'hex')

-- name: value
coalesce(length({value}) || ':' || {value}, '-')

-- name: time
-- In microseconds. What cannot be read is in no archive.
CASE WHEN reservation.readable_time(m.time) IS NULL THEN 'not archived'
     ELSE (extract(epoch FROM m.time) * 1000000)::bigint::text END

-- name: json
regexp_replace(reservation.readable_text(m.{column}), '^unreadable: ', 'not archived: ')

-- name: removal
-- Removes the messages of to_go. Returns how many, and the global positions at which the store has
-- something else than the archive.
gone AS (
  DELETE FROM message_store.messages m
  USING to_go t
  -- Compared again with the row as it is deleted: another transaction may have changed it.
  WHERE %(apply)s AND m.global_position = t.global_position AND {digest} = t.digest
  RETURNING 1
)
SELECT CASE WHEN %(apply)s THEN (SELECT count(*) FROM gone) ELSE (SELECT count(*) FROM to_go) END,
       ARRAY(SELECT c.global_position FROM compared c WHERE NOT c.is_archived ORDER BY 1)

-- name: readers
-- By category, the consumers that have a position in it, and those that a process declares as its
-- subscribers and that have none.
SELECT c.category, ARRAY(
         SELECT DISTINCT p.consumer FROM reservation.positions p WHERE p.category = c.category ORDER BY 1
       ), ARRAY(
         SELECT DISTINCT m.consumer FROM reservation.members m
         WHERE m.declaration->'subscriptions' ? c.category
           AND NOT EXISTS (SELECT FROM reservation.positions p
                           WHERE p.consumer = m.consumer AND p.category = c.category)
         ORDER BY 1
       )
FROM unnest(%(categories)s::text[]) AS c(category)

-- name: archived_commands
-- Removes those of some archived commands that need not stay. These stay: what differs from the archive;
-- what a consumer of the category has yet to read or handle; the last message of each stream, from which
-- the next message takes its position; the last archived message, which identifies the archive; and the
-- messages at the consumers' positions.
WITH {compared}, portion AS MATERIALIZED (
  SELECT m.global_position, m.stream_name, m.position, m.digest
  FROM compared m
  WHERE m.is_archived AND message_store.category(m.stream_name) = %(category)s
    AND m.global_position < %(last)s
    AND m.global_position <= (SELECT reservation.dealt_with(%(category)s))
    AND m.global_position NOT IN (SELECT reservation.stood_at(%(category)s))
), to_go AS MATERIALIZED (
  SELECT p.global_position, p.digest
  FROM portion p
  WHERE EXISTS (
      SELECT FROM message_store.messages m
      WHERE m.stream_name = p.stream_name AND m.position > p.position)
    AND NOT EXISTS (
      SELECT FROM reservation.dead_letters d
      WHERE d.category = %(category)s AND d.global_position = p.global_position
        AND (d.state IN ('waiting', 'parked', 'dead') OR d.data IS NOT NULL))
), {removal}

-- name: archived_reservations
-- The same of some archived reservations, of streams of which all is archived, old enough, read and no
-- dead letter.
WITH up_to AS MATERIALIZED (
  SELECT least(d.position, %(last)s - 1) AS position
  FROM reservation.dealt_with(%(category)s) AS d(position)
  WHERE d.position IS NOT NULL
), stood_at AS MATERIALIZED (
  SELECT s.position FROM reservation.stood_at(%(category)s) AS s(position)
), {compared}, portion AS MATERIALIZED (
  SELECT m.global_position, m.stream_name, m.digest
  FROM compared m
  JOIN up_to u ON m.global_position <= u.position
  WHERE m.is_archived AND message_store.category(m.stream_name) = %(category)s
), to_go AS MATERIALIZED (
  SELECT p.global_position, p.digest
  FROM portion p
  WHERE NOT EXISTS (
      SELECT FROM message_store.messages m, up_to u
      WHERE m.stream_name = p.stream_name
        AND (m.global_position > u.position
             OR m.time >= clock_timestamp() AT TIME ZONE 'utc' - %(older_than)s::interval
             OR m.global_position IN (SELECT s.position FROM stood_at s)))
    AND NOT EXISTS (
      SELECT FROM reservation.dead_letters d
      WHERE d.category = %(category)s AND d.stream_name = p.stream_name
        AND (d.state IN ('waiting', 'parked', 'dead') OR d.data IS NOT NULL))
), {removal}
