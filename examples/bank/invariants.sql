-- name: i1_acknowledged
-- Every command that was acknowledged is in the log exactly once.
SELECT a.id::text AS what
FROM unnest(%(acknowledged)s::uuid[]) AS a(id)
LEFT JOIN message_store.messages m
  ON m.id = a.id AND message_store.category(m.stream_name) = 'account:command'
GROUP BY a.id HAVING count(m.id) <> 1

-- name: i2_one_effect
-- Every idempotence key has exactly one effect, or none if its command or copy is a dead letter.
WITH asked AS (
  SELECT m.data->>'accountId' AS account,
         CASE m.type WHEN 'Open' THEN 'open' WHEN 'Close' THEN 'close'
                     ELSE coalesce(m.data->>'depositId', m.data->>'withdrawalId') END AS key,
         count(l.state) AS letters
  FROM message_store.messages m
  LEFT JOIN reservation.dead_letters l
    ON l.consumer = 'account' AND l.global_position = m.global_position
    AND l.state <> 'handled' AND l.reason <> 'conflict'
  WHERE message_store.category(m.stream_name) IN ('account:command', 'accountTransaction')
  GROUP BY 1, 2
), effects AS (
  SELECT data->>'accountId' AS account,
         CASE type WHEN 'Opened' THEN 'open' WHEN 'Closed' THEN 'close'
                   ELSE coalesce(data->>'depositId', data->>'withdrawalId') END AS key,
         count(*) AS times
  FROM message_store.messages
  WHERE message_store.category(stream_name) = 'account'
  GROUP BY 1, 2
)
SELECT asked.account || ' ' || asked.key || ': ' || coalesce(effects.times, 0) || ' effects' AS what
FROM asked LEFT JOIN effects USING (account, key)
WHERE coalesce(effects.times, 0) <> 1 AND (effects.times > 1 OR asked.letters = 0)

-- name: i3_no_effect_without_command
-- Every event follows a command, directly or through the command's reservation.
SELECT e.type || ' at ' || e.stream_name || ' position ' || e.position AS what
FROM message_store.messages e
LEFT JOIN message_store.messages cause
  ON cause.global_position = (e.metadata->>'causationMessageGlobalPosition')::bigint
LEFT JOIN message_store.messages command
  ON command.global_position = CASE message_store.category(cause.stream_name)
       WHEN 'accountTransaction'
       THEN (cause.metadata->>'causationMessageGlobalPosition')::bigint
       ELSE cause.global_position END
WHERE message_store.category(e.stream_name) IN ('account', 'accountTransaction')
  AND (command.stream_name IS NULL
       OR message_store.category(command.stream_name) <> 'account:command'
       OR command.data->>'accountId' <> e.data->>'accountId'
       OR coalesce(command.data->>'depositId', command.data->>'withdrawalId', '')
          <> coalesce(e.data->>'depositId', e.data->>'withdrawalId', ''))

-- name: i4_gapless
-- Positions in a stream are gapless from 0.
SELECT stream_name AS what
FROM message_store.messages
GROUP BY stream_name
HAVING min(position) <> 0 OR max(position) <> count(*) - 1

-- name: i5_in_order
-- The consumers saw every message of their categories, in order: an account's reservations stand in
-- the order of the commands they follow, and an account's transactions in that of their reservations.
SELECT stream_name AS what
FROM (
  SELECT stream_name, global_position,
         (metadata->>'causationMessageGlobalPosition')::bigint AS cause,
         lag((metadata->>'causationMessageGlobalPosition')::bigint)
           OVER (PARTITION BY split_part(stream_name, '+', 1) ORDER BY global_position)
           AS cause_before
  FROM message_store.messages
  WHERE message_store.category(stream_name) = 'accountTransaction'
) AS reservations
WHERE cause <= cause_before
UNION ALL
SELECT stream_name || ' position ' || position
FROM (
  SELECT stream_name, position, (data->>'sequence')::bigint AS sequence,
         lag((data->>'sequence')::bigint)
           OVER (PARTITION BY stream_name ORDER BY position) AS sequence_before
  FROM message_store.messages
  WHERE message_store.category(stream_name) = 'account' AND data ? 'sequence'
) AS events
WHERE sequence <= sequence_before

-- name: i6_money
-- Every withdrawal was covered by the balance before it and every rejected one was not, and each
-- amount is that of the command, or that of the data that its letter was given.
SELECT stream_name || ' position ' || position AS what
FROM (
  SELECT e.stream_name, e.position, e.type, (e.data->>'amount')::numeric AS amount,
         (coalesce(letter.data, command.data)->>'amount')::numeric AS asked,
         coalesce(sum(CASE e.type WHEN 'Deposited' THEN (e.data->>'amount')::numeric
                                  WHEN 'Withdrawn' THEN -(e.data->>'amount')::numeric END)
           OVER (PARTITION BY e.stream_name ORDER BY e.position
                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS balance
  FROM message_store.messages e
  JOIN message_store.messages command
    ON command.global_position = (e.data->>'sequence')::bigint
  LEFT JOIN reservation.dead_letters letter
    ON letter.consumer = 'account' AND letter.category = message_store.category(command.stream_name)
    AND letter.global_position = command.global_position AND letter.message_id = command.id
  WHERE message_store.category(e.stream_name) = 'account'
) AS transactions
WHERE (type = 'Withdrawn' AND amount > balance)
   OR (type = 'WithdrawalRejected' AND amount <= balance)
   OR amount <> asked

-- name: i7_drained
-- Each consumer has read its category to the end: in every partition to the last message that there is,
-- and nowhere beyond the last of all.
WITH heads AS (
  SELECT c.category, reservation.partition_of(m.stream_name, coalesce(g.partitions, 1)) AS partition,
         max(m.global_position) AS head,
         max(max(m.global_position)) OVER (PARTITION BY c.category) AS last
  FROM unnest(ARRAY['account:command', 'accountTransaction']) AS c(category)
  JOIN message_store.messages m ON message_store.category(m.stream_name) = c.category
  LEFT JOIN reservation.groups g ON g.consumer = 'account' AND g.category = c.category
  GROUP BY 1, 2
)
SELECT h.category || ' position ' || coalesce(p.position, 0) || ' of ' || h.head AS what
FROM heads h
LEFT JOIN reservation.positions p
  ON p.consumer = 'account' AND p.category = h.category AND p.partition = h.partition
WHERE coalesce(p.position, 0) NOT BETWEEN h.head AND h.last

-- name: i8_accounted_for
-- Every command brought something about, or stands beside an equal or conflicting one that did;
-- every reserved copy was handled; or there is a dead letter that tells why not.
WITH causes AS (
  SELECT (metadata->>'causationMessageGlobalPosition')::bigint AS global_position, data
  FROM message_store.messages
  WHERE message_store.category(stream_name) IN ('account', 'accountTransaction')
), messages AS (
  SELECT m.*, data->>'accountId' AS account,
         coalesce(data->>'depositId', data->>'withdrawalId', type) AS key,
         EXISTS (SELECT FROM causes c WHERE c.global_position = m.global_position) AS has_effect
  FROM message_store.messages m
  WHERE message_store.category(stream_name) IN ('account:command', 'accountTransaction')
)
SELECT m.type || ' at ' || m.stream_name || ' position ' || m.position AS what
FROM messages m
WHERE NOT m.has_effect
  AND NOT EXISTS (
    SELECT FROM reservation.dead_letters l
    WHERE l.consumer = 'account' AND l.global_position = m.global_position
      AND l.state <> 'handled')
  AND (message_store.category(m.stream_name) = 'accountTransaction'
       OR NOT EXISTS (
         SELECT FROM messages earlier
         WHERE earlier.account = m.account AND earlier.key = m.key AND earlier.has_effect
           AND message_store.category(earlier.stream_name) = 'account:command'
           AND earlier.global_position < m.global_position))

-- name: accounts
SELECT stream_name,
       sum(CASE type WHEN 'Deposited' THEN (data->>'amount')::numeric
                     WHEN 'Withdrawn' THEN -(data->>'amount')::numeric ELSE 0 END) AS balance
FROM message_store.messages
WHERE message_store.category(stream_name) = 'account'
GROUP BY stream_name

-- name: progress
-- How many messages of each category the consumers still have before them.
SELECT c.category,
       (SELECT count(*) FROM message_store.messages m
        LEFT JOIN reservation.positions p
          ON p.consumer = 'account' AND p.category = c.category
          AND p.partition = reservation.partition_of(m.stream_name, coalesce(g.partitions, 1))
        WHERE message_store.category(m.stream_name) = c.category
          AND m.global_position > coalesce(p.position, 0)) AS unread,
       (SELECT count(*) FROM message_store.messages m
        WHERE message_store.category(m.stream_name) = c.category) AS stored
FROM unnest(ARRAY['account:command', 'accountTransaction']) AS c(category)
LEFT JOIN reservation.groups g ON g.consumer = 'account' AND g.category = c.category
