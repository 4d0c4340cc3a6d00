-- name: insert
INSERT INTO message_store.messages (id, stream_name, position, type, data)
SELECT unnest(%s), unnest(%s), unnest(%s), unnest(%s), unnest(%s)

-- name: drop_indexes
DO $$
BEGIN
  DROP INDEX message_store.messages_id, message_store.messages_stream,
             message_store.messages_category;
END
$$

-- name: fill
-- Accounts with their commands, copies and events, as a bank that has run for long would have them.
INSERT INTO message_store.messages (id, stream_name, position, type, data, metadata)
SELECT (lpad(to_hex(1700000000000 + n), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
         || substr(md5(n::text), 4, 15))::uuid,
       CASE n %% 3 WHEN 0 THEN 'account:command-' || n %% 50000
                  WHEN 1 THEN 'accountTransaction-' || n %% 50000 || '+d' || n
                  ELSE 'account-' || n %% 50000 END,
       CASE n %% 3 WHEN 1 THEN 0 ELSE n / 50000 END,
       CASE n %% 3 WHEN 2 THEN 'Deposited' ELSE 'Deposit' END,
       jsonb_build_object('depositId', 'd' || n, 'accountId', (n %% 50000)::text,
                          'amount', 10.5, 'time', '2026-01-01T00:00:00Z'),
       CASE n %% 3 WHEN 0 THEN NULL ELSE jsonb_build_object(
         'causationMessageStreamName', 'account:command-' || n %% 50000,
         'causationMessagePosition', n / 50000, 'causationMessageGlobalPosition', n) END
FROM generate_series(1, %(count)s) AS n

-- name: fill_commands
-- A backlog: deposits to 10,000 accounts, as a sender writes them, that nobody has handled.
INSERT INTO message_store.messages (id, stream_name, position, type, data)
SELECT (lpad(to_hex(1700000000000 + n), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
         || substr(md5(n::text), 4, 15))::uuid,
       'account:command-' || n %% 10000, n / 10000, 'Deposit',
       jsonb_build_object('depositId', 'd' || n, 'accountId', (n %% 10000)::text,
                          'amount', 10.5, 'time', '2026-01-01T00:00:00Z')
FROM generate_series(0, %(count)s - 1) AS n

-- name: make_indexes
DO $$
BEGIN
  CREATE UNIQUE INDEX messages_id ON message_store.messages (id);
  CREATE UNIQUE INDEX messages_stream ON message_store.messages (stream_name, position);
  CREATE INDEX messages_category ON message_store.messages (
    message_store.category(stream_name), global_position,
    message_store.category(metadata->>'correlationStreamName'));
END
$$

-- name: analyze
VACUUM (ANALYZE) message_store.messages

-- name: count
SELECT count(*) FROM message_store.messages
WHERE message_store.category(stream_name) = %(category)s

-- name: transactions
SELECT xact_commit + xact_rollback FROM pg_catalog.pg_stat_database
WHERE datname = current_database()

-- name: shares
SELECT count(*) FROM reservation.positions
WHERE category = %(category)s
GROUP BY holder

-- name: account_of
SELECT n FROM generate_series(%(first)s::integer, %(first)s + 999) AS n
WHERE reservation.partition_of('accountTransaction-' || n, %(partitions)s) IN (
  SELECT p.partition
  FROM reservation.positions p JOIN reservation.members m ON m.member = p.holder
  WHERE p.category = 'accountTransaction' AND split_part(m.process, ':', 2) = %(process)s)
LIMIT 1

-- name: move_positions
-- As so many batches move each position; in the end they are where they were.
DO $$
DECLARE
  one record;
BEGIN
  FOR one IN SELECT p.*, o.id AS other_id, o.global_position AS other_position
             FROM reservation.positions p
             JOIN message_store.messages o ON o.global_position = p.position + 1
  LOOP
    FOR n IN 1 .. current_setting('bench.batches')::integer / 2 LOOP
      PERFORM reservation.move_positions(
        one.consumer, one.category, ARRAY[one.partition], ARRAY[one.epoch],
        one.position, one.other_position, one.other_id, false);
      COMMIT;
      PERFORM reservation.move_positions(
        one.consumer, one.category, ARRAY[one.partition], ARRAY[one.epoch],
        one.other_position, one.position, one.message_id, false);
      COMMIT;
    END LOOP;
  END LOOP;
END
$$

-- name: tables
SELECT schemaname, tablename FROM pg_catalog.pg_tables
WHERE schemaname IN ('message_store', 'reservation') AND NOT EXISTS (
  SELECT FROM pg_catalog.pg_inherits
  WHERE inhrelid = format('%I.%I', schemaname, tablename)::regclass)

-- name: done_by_pgqueuer
SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'

-- name: done_by_procrastinate
SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'

-- name: done_by_message_db
SELECT count(*) FROM message_store.messages WHERE message_store.category(stream_name) = 'account'

-- name: done_by_eventsourcing
SELECT count(*) FROM effects_events

-- name: connections
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'reservation %'

-- name: fill_bookings
-- An event for each booking, in a stream of its own.
INSERT INTO message_store.messages (id, stream_name, position, type, data)
SELECT gen_random_uuid(), 'booking-b' || n, 0, 'Booked',
       jsonb_build_object('bookingId', 'b' || n, 'night', n %% 365)
FROM generate_series(1, %(count)s) AS n

-- name: insert_booking
INSERT INTO bookings VALUES (%s, %s)

-- name: insert_bookings
INSERT INTO bookings SELECT * FROM unnest(%s::text[], %s::int[])

-- name: called_at
SELECT extract(epoch FROM (data->>'processedTime')::timestamptz)::float8 AS at
FROM message_store.messages
WHERE message_store.category(stream_name) = 'account'
ORDER BY at
