-- name: export_snapshot
SELECT pg_export_snapshot(), now()

-- name: positions
-- The position of each partition, those of former partitions, and the highest position of another log. No
-- row if no consumer has run and no position was set.
SELECT array_agg(p.position ORDER BY p.partition), g.former_positions, g.first_position,
       CASE WHEN reservation.has_foreign_former_positions(p.consumer, p.category) THEN max(p.position)
            ELSE max(p.position) FILTER (WHERE reservation.is_foreign(p.position, p.message_id)) END
FROM reservation.positions p
LEFT JOIN reservation.groups g USING (consumer, category)
WHERE p.consumer = %(consumer)s AND p.category = %(category)s
GROUP BY p.consumer, p.category, g.former_positions, g.first_position
HAVING max(p.epoch) > 0 OR max(p.position) > 0

-- name: gone
-- The messages that a consumer stands at and that are not in the log, and whether they were deleted from it: the log
-- was once that far, nothing else is in their place, and another message that consumers have recorded is still in its
-- own. Otherwise the log was replaced.
WITH stands AS (
  SELECT p.position, p.message_id FROM reservation.positions p
  WHERE p.consumer = %(consumer)s AND p.category = %(category)s
  UNION
  SELECT c.position, c.message_id
  FROM reservation.groups g, unnest(g.former_positions, g.former_position_ids) AS c("position", message_id)
  WHERE g.consumer = %(consumer)s AND g.category = %(category)s
    AND c.position > (SELECT min(p.position) FROM reservation.positions p
                      WHERE p.consumer = g.consumer AND p.category = g.category)
), recorded AS (
  SELECT p.position, p.message_id FROM reservation.positions p
  UNION ALL
  SELECT c.position, c.message_id
  FROM reservation.groups g, unnest(g.former_positions, g.former_position_ids) AS c("position", message_id)
  UNION ALL
  SELECT d.global_position, d.message_id FROM reservation.dead_letters d
)
SELECT s.position, s.message_id::text,
       s.message_id IS NOT NULL AND NOT reservation.is_foreign(s.position, NULL)
         AND NOT EXISTS (SELECT FROM message_store.messages m WHERE m.global_position = s.position)
         AND EXISTS (SELECT FROM recorded r
                     JOIN message_store.messages m ON m.global_position = r.position AND m.id = r.message_id)
FROM stands s
WHERE reservation.is_foreign(s.position, s.message_id)
ORDER BY s.position

-- name: letters
-- The messages that the consumer has not handled, and all that it recorded as conflicts. A letter of
-- another log, at whose position there is another message now, does not count.
SELECT d.global_position, d.reason = 'conflict', d.state = 'discarded' FROM reservation.dead_letters d
WHERE d.consumer = %(consumer)s AND d.category = %(category)s AND (d.state <> 'handled' OR d.reason = 'conflict')
  AND NOT EXISTS (
    SELECT FROM message_store.messages m
    WHERE m.global_position = d.global_position AND m.id <> d.message_id)
ORDER BY d.global_position

-- name: passes
SELECT count(*), coalesce(sum(p.global_position), 0), coalesce(max(extract(epoch FROM p.passed_at)), 0)
FROM reservation.passes p WHERE p.consumer = %(consumer)s

-- name: position_of_eventide
-- The lowest of the positions that the consumers of a category stored, each in a stream of its own; a
-- stream whose last message holds no position says that nothing was read.
SELECT min(last.position) FROM (
  SELECT DISTINCT ON (m.stream_name)
         CASE WHEN m.data->>'position' ~ '^[0-9]{1,18}$' THEN (m.data->>'position')::bigint
              ELSE 0 END AS position
  FROM message_store.messages m
  WHERE message_store.category(m.stream_name) = %(category)s
  ORDER BY m.stream_name, m.position DESC
) AS last

-- name: head
SELECT m.global_position, m.id FROM message_store.messages m
WHERE (message_store.category(m.stream_name), m.global_position)
      BETWEEN (%(category)s, 0) AND (%(category)s, 9223372036854775807)
ORDER BY message_store.category(m.stream_name) DESC, m.global_position DESC LIMIT 1

-- name: holds
SELECT FROM message_store.messages m WHERE m.global_position = %(global_position)s AND m.id = %(id)s::uuid

-- name: probe
-- A hash that is another one where the server's encoding or its way to hash is another one.
SELECT hashtextextended(current_setting('server_encoding'), %(seed)s)

-- name: blocks
-- How many messages each block of global positions has, and the sum of their positions, from one index. Each block
-- is a range of it, which takes a third of the time of grouping all positions.
WITH RECURSIVE blocks(number) AS (
  SELECT (SELECT m.global_position / %(size)s FROM message_store.messages m
          WHERE m.global_position <= %(last)s
          ORDER BY m.global_position LIMIT 1)
  UNION ALL
  SELECT (SELECT m.global_position / %(size)s FROM message_store.messages m
          WHERE m.global_position > b.number * %(size)s + (%(size)s - 1) AND m.global_position <= %(last)s
          ORDER BY m.global_position LIMIT 1)
  FROM blocks b
  WHERE b.number IS NOT NULL
)
SELECT b.number, of_block.count, of_block.sum
FROM blocks b
CROSS JOIN LATERAL (
  SELECT count(*), sum(m.global_position)
  FROM message_store.messages m
  WHERE m.global_position BETWEEN b.number * %(size)s AND least(b.number * %(size)s + (%(size)s - 1), %(last)s)
) AS of_block
WHERE b.number IS NOT NULL

-- name: positions_in
-- The global positions of the messages in some blocks.
SELECT m.global_position
FROM unnest(%(blocks)s::bigint[]) AS b(number)
JOIN message_store.messages m
  ON m.global_position BETWEEN b.number * %(size)s AND least(b.number * %(size)s + (%(size)s - 1), %(last)s)

-- name: positions_behind
SELECT m.global_position FROM message_store.messages m WHERE m.global_position > %d

-- name: is_older
-- The first message from a global position on, and whether it is older than a time.
SELECT m.global_position, m.time < %(before)s
FROM message_store.messages m
WHERE m.global_position >= %(first)s
ORDER BY m.global_position LIMIT 1

-- name: older
-- The last message before the first one that is not older, of a part of a category. One whose time cannot be
-- read is as old as those around it.
SELECT m.global_position, m.id FROM message_store.messages m
WHERE (message_store.category(m.stream_name), m.global_position)
      BETWEEN (%(category)s, %(first)s)
      AND (%(category)s, coalesce((
        SELECT younger.global_position - 1 FROM message_store.messages younger
        WHERE (message_store.category(younger.stream_name), younger.global_position)
              BETWEEN (%(category)s, %(first)s) AND (%(category)s, %(last)s)
          AND reservation.readable_time(younger.time) >= %(before)s
        ORDER BY message_store.category(younger.stream_name), younger.global_position LIMIT 1
      ), %(last)s))
ORDER BY message_store.category(m.stream_name) DESC, m.global_position DESC LIMIT 1

-- name: corrections
-- The messages of a category whose letters were given other data, with the digests of what was sent and of what
-- was given, and that data. A letter of a message of another log does not count.
WITH contents AS (
  SELECT m.global_position, m.type, v.is_sent, v.data
  FROM reservation.dead_letters d
  JOIN message_store.messages m ON m.global_position = d.global_position AND m.id = d.message_id
  CROSS JOIN LATERAL (VALUES (true, m.data), (false, d.data)) AS v(is_sent, data)
  WHERE d.consumer = {consumer} AND d.category = {category} AND d.data IS NOT NULL
), digests AS (
  SELECT m.global_position, m.type, m.is_sent, m.data, {content} AS digest
  FROM (
    SELECT m.*, m.kept::text AS kept_text
    FROM (SELECT m.*, {kept} AS kept FROM contents AS m) AS m
  ) AS m
)
SELECT d.global_position, d.type, max(d.digest) FILTER (WHERE d.is_sent),
       max(d.digest) FILTER (WHERE NOT d.is_sent), max(d.data::text) FILTER (WHERE NOT d.is_sent)
FROM digests d
GROUP BY d.global_position, d.type
ORDER BY d.global_position

-- name: given_data
-- The data that letters of a part of a category were given, and who gave it, when and why.
SELECT d.category, d.global_position, d.data::text, h.decided_by, h.decided_at, h.reason
FROM reservation.dead_letters d
JOIN message_store.messages m ON m.global_position = d.global_position AND m.id = d.message_id
JOIN reservation.letter_decisions h ON h.number = d.correction
WHERE d.consumer = %(consumer)s AND d.category = %(category)s AND d.data IS NOT NULL
  AND d.global_position BETWEEN %(first)s AND %(last)s
ORDER BY d.global_position
