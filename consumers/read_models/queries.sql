-- name: between
-- How many messages of a category are between two positions, and where the first of all is.
SELECT (SELECT count(*) FROM message_store.messages m
        WHERE (message_store.category(m.stream_name), m.global_position)
              BETWEEN (%(category)s, %(after)s::bigint + 1) AND (%(category)s, %(until)s::bigint)),
       coalesce((SELECT m.global_position FROM message_store.messages m
        WHERE (message_store.category(m.stream_name), m.global_position)
              BETWEEN (%(category)s, 0) AND (%(category)s, 9223372036854775807)
        ORDER BY message_store.category(m.stream_name), m.global_position
        LIMIT 1), 0)

-- name: letters
-- The letters of a consumer whose messages are not in its rows, or are there with other data.
SELECT d.global_position, d.data::text, d.state = 'handled'
FROM reservation.dead_letters d
WHERE d.consumer = %(consumer)s AND d.category = %(category)s
  AND (d.state <> 'handled' OR d.data IS NOT NULL)

-- name: was_run
SELECT EXISTS (SELECT FROM reservation.groups WHERE consumer = %(consumer)s)

-- name: count
SELECT count(*) FROM {table}

-- name: differences
-- The rows that are not the same in two tables, found by their keys; NULL for a row that one lacks. As
-- JSON, because a type that the tables came with is another one in each schema. In JSON a column without
-- a value is as one with the null of JSON, so which are without is compared too.
SELECT to_jsonb(live.*)::text, to_jsonb(rebuilt.*)::text, {live_nulls}, {rebuilt_nulls}
FROM {live} AS live
FULL JOIN {rebuilt} AS rebuilt ON {same_key}
WHERE (to_jsonb(live.*), {live_nulls}) IS DISTINCT FROM (to_jsonb(rebuilt.*), {rebuilt_nulls})
ORDER BY {key}

-- name: holds
-- Whether the store has a message.
SELECT EXISTS (
  SELECT FROM message_store.messages m
  WHERE m.global_position = %(position)s AND m.id::text = %(message_id)s
    AND message_store.category(m.stream_name) = %(category)s)

-- name: is_behind
-- Whether a consumer has yet to read messages of a category up to a position.
SELECT coalesce(min(p.position), 0) < %(last)s FROM reservation.positions p
WHERE p.consumer = %(consumer)s AND p.category = %(category)s

-- name: gaps
-- Of the first messages of a category behind a position: those of which the store lacks the message
-- before, in their streams.
SELECT m.stream_name::text, m.position - 1
FROM (
  SELECT stream_name, position, global_position
  FROM message_store.messages
  WHERE (message_store.category(stream_name), global_position)
        BETWEEN (%(category)s, %(after)s::bigint + 1) AND (%(category)s, 9223372036854775807)
  ORDER BY message_store.category(stream_name), global_position
  LIMIT %(limit)s
) AS m
WHERE m.position > 0 AND NOT EXISTS (
  SELECT FROM message_store.messages p
  WHERE p.stream_name = m.stream_name AND p.position = m.position - 1)
ORDER BY m.global_position

-- name: hold_snapshot
-- A snapshot for others, while this transaction is open and idle, whatever a role or a database has set.
SELECT pg_export_snapshot(), (
  SELECT count(set_config(s.name, '0', true)) FROM pg_settings s
  WHERE s.name IN ('idle_in_transaction_session_timeout', 'transaction_timeout', 'statement_timeout'))

-- name: rows_at
-- Rows by where they are stored.
SELECT t.tableoid::bigint, t.ctid::text, to_jsonb(t.*)::text, {nulls}
FROM {table} AS t
WHERE t.ctid = ANY ({places}::tid[])

-- name: in_order
-- The numbers of rows in the order of their keys, as above.
SELECT r.n FROM unnest({rows}::jsonb[]) WITH ORDINALITY AS r(of, n) ORDER BY {key}
