"""A large store: messages of two components, and dead letters of one."""

from psycopg import Connection

# A component reads order:command and orderTransaction, and its events are in the category order.
_MESSAGES = """
INSERT INTO message_store.messages
  (global_position, position, time, stream_name, type, data, metadata)
SELECT n, 0, (now() AT TIME ZONE 'utc') - make_interval(secs => %(messages)s - n),
       (ARRAY['order:command-', 'orderTransaction-', 'order-', 'payment:command-'])[1 + n %% 4]
         || n / 4,
       'Placed', jsonb_build_object('orderId', n / 4, 'cents', n),
       jsonb_build_object('causationMessageStreamName', 'order:command-' || n / 4)
FROM generate_series(1, %(messages)s) AS n
"""

_POSITIONS = """
WITH reads (consumer, category) AS (
  VALUES ('order', 'order:command'), ('order', 'orderTransaction'), ('payment', 'payment:command'),
         ('payment', 'order')
), made AS (
  INSERT INTO reservation.groups (consumer, category, partitions)
  SELECT consumer, category, 4 FROM reads
), leased AS (
  INSERT INTO reservation.leases (consumer, category, partition)
  SELECT consumer, category, partition FROM reads, generate_series(0, 3) AS partition
)
INSERT INTO reservation.moves (consumer, category, partition, position, message_id)
SELECT consumer, category, partition, position, (
  SELECT id FROM message_store.messages m WHERE m.global_position = position)
FROM reads, generate_series(0, 3) AS partition, LATERAL (
  SELECT max(global_position) AS position FROM message_store.messages m
  WHERE message_store.category(m.stream_name) = category AND m.global_position <= %(read)s) AS last
"""

_LETTERS = """
INSERT INTO reservation.dead_letters (
  consumer, category, global_position, message_id, stream_name, type, entity, state, reason, error,
  attempts, process, next_attempt_at)
SELECT 'order', 'orderTransaction', m.global_position, m.id, m.stream_name, m.type,
       'order-' || m.global_position %% 500,
       CASE WHEN m.global_position %% 10 = 0 THEN 'waiting'
            WHEN m.global_position %% 5 = 0 THEN 'dead' ELSE 'parked' END, 'handler',
       'raised ValueError', 1, 'host 7',
       CASE WHEN m.global_position %% 10 = 0
            THEN now() + make_interval(secs => m.global_position) END
FROM message_store.messages m
WHERE message_store.category(m.stream_name) = 'orderTransaction'
  AND m.global_position <= 4 * %(letters)s
"""


def fill_large(connection: Connection, messages: int, read: int, letters: int) -> None:
    """Write the messages, positions that have read so many of them, and dead letters."""
    values = {"messages": messages, "read": read, "letters": letters}
    for query in (_MESSAGES, _POSITIONS, _LETTERS):
        connection.execute(query.encode(), values)
    connection.execute(
        "SELECT setval('message_store.messages_global_position_seq', %(messages)s)", values
    )
