-- name: fill
-- The books of a bank that has run for long, with findings of every kind planted in them. Each deposit
-- has eight global positions to itself, of which it uses those it needs: 0 its command, 1 the copy,
-- 2 the event, 3 a reissue of an older one, 4 and 5 what is planted. `n %% 1009` says what that is.
INSERT INTO message_store.messages
  (global_position, id, stream_name, position, type, data, metadata, time)
SELECT m.global_position, md5('message ' || m.global_position)::uuid, m.stream_name, m.position, m.type,
       m.data, m.metadata, m.time
FROM generate_series(%(first)s::bigint, %(last)s) AS n
CROSS JOIN LATERAL (
  SELECT %(base)s::bigint + n * 8 AS at, n %% %(accounts)s AS account, n %% 1009 AS kind,
         n > %(keys)s - %(pending)s AS unread, n > %(keys)s - 2 * %(pending)s AS unhandled,
         timestamp '2026-01-01' + interval '1 second' * (n * 2592000.0 / %(keys)s) AS sent,
         interval '1 millisecond' * (5 + hashint8(n) & 1023) AS takes
) AS of
CROSS JOIN LATERAL (
  SELECT CASE WHEN of.unhandled THEN 0 ELSE of.kind END AS planted,
         'account:command-' || of.account AS sent_to,
         'accountTransaction-' || of.account || '+d' || n AS reserved_as,
         'account-' || of.account AS entity,
         jsonb_build_object('depositId', 'd' || n, 'accountId', of.account::text, 'amount', 10.5,
                            'time', '2026-01-01T00:00:00Z') AS says,
         jsonb_build_object('correlationStreamName', 'transfer' || n %% 5 || '-' || n) AS belongs
) AS with_
CROSS JOIN LATERAL (
  VALUES
    (0, sent_to, at, 'Deposit', says, belongs, sent, planted <> 2),
    (1, reserved_as, 0, 'Deposit', says, belongs || jsonb_build_object(
       'causationMessageStreamName', sent_to, 'causationMessagePosition', at,
       'causationMessageGlobalPosition', at), sent + takes, NOT unread AND planted <> 1),
    (2, entity, at + 2, 'Deposited', says, belongs || jsonb_build_object(
       'causationMessageStreamName', reserved_as, 'causationMessagePosition', 0,
       'causationMessageGlobalPosition', at + 1), sent + takes * 2,
       NOT unhandled AND planted NOT IN (1, 8, 10)),
    (3, 'account:command-' || (n - 1000) %% %(accounts)s, at + 3, 'Deposit',
       says || jsonb_build_object('depositId', 'd' || n - 1000,
                                  'accountId', ((n - 1000) %% %(accounts)s)::text,
                                  'time', '2026-01-02T00:00:00Z'),
       jsonb_build_object('correlationStreamName', 'transfer' || (n - 1000) %% 5 || '-' || n - 1000),
       sent, n %% 20 = 0 AND n > 1000 AND (n - 1000) %% 1009 <> 2 AND NOT unhandled),
    (4, CASE WHEN planted = 3 THEN reserved_as
             WHEN planted IN (4, 6) THEN sent_to
             WHEN planted = 5 THEN 'accountTransaction-' || account || '+x' || n
             ELSE entity END,
       CASE planted WHEN 3 THEN 1 WHEN 5 THEN 0 ELSE at + 4 END,
       CASE WHEN planted IN (3, 4, 6) THEN 'Deposit' WHEN planted = 5 THEN 'Audit'
            ELSE 'Deposited' END,
       CASE planted WHEN 4 THEN says || '{"amount": 99}' WHEN 6 THEN says - 'depositId' ELSE says END,
       CASE WHEN planted IN (4, 5, 6) THEN belongs ELSE belongs || jsonb_build_object(
         'causationMessageStreamName', reserved_as, 'causationMessagePosition', 0,
         'causationMessageGlobalPosition', CASE WHEN planted = 9 THEN at + 7 ELSE at + 1 END) END,
       sent + takes * 3, planted BETWEEN 3 AND 9 AND planted <> 8),
    (5, entity, at + 5, 'Deposited', says, belongs || jsonb_build_object(
       'causationMessageStreamName', reserved_as, 'causationMessagePosition', 1,
       'causationMessageGlobalPosition', at + 4), sent + takes * 4, planted = 3)
) AS slot(slot, stream_name, position, type, data, metadata, time, is_there)
CROSS JOIN LATERAL (SELECT at + slot.slot AS global_position, slot.stream_name, slot.position,
                           slot.type, slot.data, slot.metadata, slot.time) AS m
WHERE slot.is_there

-- name: open
-- The accounts, each opened by a command of its own.
INSERT INTO message_store.messages
  (global_position, id, stream_name, position, type, data, metadata, time)
SELECT 2 * a + e, md5('message ' || 2 * a + e)::uuid,
       CASE e WHEN 0 THEN 'account:command-' ELSE 'account-' END || a - 1, 0,
       CASE e WHEN 0 THEN 'Open' ELSE 'Opened' END,
       jsonb_build_object('accountId', (a - 1)::text, 'customerId', 'c' || a,
                          'time', '2026-01-01T00:00:00Z'),
       CASE e WHEN 1 THEN jsonb_build_object(
         'causationMessageStreamName', 'account:command-' || a - 1, 'causationMessagePosition', 0,
         'causationMessageGlobalPosition', 2 * a) END,
       timestamp '2026-01-01'
FROM generate_series(1, %(accounts)s::bigint) AS a CROSS JOIN generate_series(0, 1) AS e

-- name: positions
-- Both consumers have read everything that is written, except the last commands of the whole books.
WITH stored AS (
  SELECT s.category, least(s.position, (SELECT max(global_position) FROM message_store.messages)) AS position
  FROM (
    VALUES ('account:command', %(base)s + (%(keys)s - %(pending)s) * 8 + 7),
           ('accountTransaction', %(base)s + (%(keys)s - 2 * %(pending)s) * 8 + 7)
  ) AS s(category, position)
), moved AS (
  UPDATE reservation.moves p SET position = s.position
  FROM stored s WHERE (p.consumer, p.category) = ('account', s.category)
  RETURNING p.category
), leased AS (
  INSERT INTO reservation.leases (consumer, category)
  SELECT 'account', s.category FROM stored s
  ON CONFLICT DO NOTHING
)
INSERT INTO reservation.moves (consumer, category, position)
SELECT 'account', s.category, s.position FROM stored s
WHERE s.category NOT IN (SELECT m.category FROM moved m)

-- name: letters
INSERT INTO reservation.dead_letters
  (consumer, category, global_position, message_id, stream_name, type, state, reason, process)
SELECT 'account', CASE m.type WHEN 'Deposit' THEN message_store.category(m.stream_name) END,
       m.global_position, m.id, m.stream_name, m.type, 'dead',
       CASE n %% 1009 WHEN 4 THEN 'conflict' ELSE 'handler' END, 'bench:1'
FROM generate_series(1, %(keys)s - 2 * %(pending)s) AS n
JOIN message_store.messages m
  ON m.global_position = %(base)s + n * 8 + CASE n %% 1009 WHEN 10 THEN 1 ELSE 4 END
WHERE n %% 1009 IN (4, 6, 10)
ON CONFLICT DO NOTHING

-- name: settle
SELECT setval('message_store.messages_global_position_seq',
              (SELECT max(global_position) FROM message_store.messages))

-- name: answer
-- What the jobs count, as one query: commands against reservations, and these against the events.
WITH said AS (
  SELECT m.global_position, m.position, m.type, true AS is_command,
         CASE m.type WHEN 'Open' THEN 'account-' || (m.data->>'accountId')
                     ELSE 'accountTransaction-' || (m.data->>'accountId') || '+' || (m.data->>'depositId')
         END AS key, m.data - 'time' AS says
  FROM message_store.messages m WHERE message_store.category(m.stream_name) = 'account:command'
  UNION ALL
  SELECT m.global_position, m.position, m.type, false, m.stream_name, m.data - 'time'
  FROM message_store.messages m WHERE message_store.category(m.stream_name) = 'accountTransaction'
), judged AS (
  SELECT s.*, first_value(s.says) OVER in_order = s.says
              AND first_value(s.type) OVER in_order = s.type AS same,
         bool_or(NOT s.is_command) OVER of_key AS is_reserved,
         bool_or(s.is_command) OVER of_key AS has_command,
         row_number() OVER (PARTITION BY s.key, s.is_command ORDER BY s.global_position) AS nth
  FROM said s
  WHERE s.type IN ('Deposit', 'Withdraw') AND s.key IS NOT NULL
  WINDOW of_key AS (PARTITION BY s.key),
         in_order AS (PARTITION BY s.key ORDER BY s.is_command, s.global_position)
), events AS (
  SELECT (m.metadata->>'causationMessageGlobalPosition')::bigint AS cause, m.stream_name, m.type
  FROM message_store.messages m WHERE message_store.category(m.stream_name) = 'account'
), effects AS (
  SELECT e.cause, max(e.of_type) AS most
  FROM (SELECT cause, count(*) AS of_type FROM events GROUP BY cause, stream_name, type) AS e
  GROUP BY e.cause
), followed AS (
  SELECT c.global_position, c.position, e.most, e.cause,
         message_store.category(c.stream_name) = 'accountTransaction' AND c.type = 'Deposit' AS is_copy
  FROM (SELECT * FROM message_store.messages m
        WHERE message_store.category(m.stream_name) IN ('account:command', 'accountTransaction')) AS c
  FULL JOIN effects e ON e.cause = c.global_position
)
SELECT (SELECT count(*) FROM judged WHERE is_command AND same AND is_reserved AND nth = 1) AS reserved,
       (SELECT count(*) FROM judged WHERE is_command AND same AND nth > 1) AS duplicates,
       (SELECT count(*) FROM judged WHERE is_command AND NOT same) AS conflict,
       (SELECT count(*) FROM judged WHERE is_command AND NOT is_reserved AND nth = 1
          AND global_position <= (SELECT position FROM reservation.positions
                                  WHERE category = 'account:command')) AS missing,
       (SELECT count(*) FROM judged WHERE NOT is_command AND NOT has_command AND nth = 1) AS orphan,
       (SELECT count(*) FROM judged WHERE NOT is_command AND nth = 2) AS multiple,
       (SELECT count(*) FROM said WHERE NOT is_command AND type NOT IN ('Deposit', 'Withdraw'))
         AS "wrong-type",
       (SELECT count(*) FROM followed WHERE most > 1 AND global_position IS NOT NULL)
         AS "effect-twice",
       (SELECT count(*) FROM followed f WHERE is_copy AND cause IS NULL
          AND f.global_position <= (SELECT position FROM reservation.positions
                                    WHERE category = 'accountTransaction')
          AND NOT EXISTS (SELECT FROM reservation.dead_letters d
                          WHERE d.global_position = f.global_position)) AS unhandled,
       (SELECT count(*) FROM followed WHERE global_position IS NULL) AS "without-cause"
