"""A log of a hundred messages that grows, with all that is kept beside it, and what is counted."""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from psycopg import Connection, Rollback
from psycopg.errors import UndefinedTable

from reservation.errors import StoreError

BATCH = 100
SMALL = 100  # how many commands there are while the log is small; the long streams begin after them
COMMANDS, LONG = "account:command", "account:command-long"
LONG_STATE, OLD_STATES = "account:state-long", "old:state"
LONG_ENTITY = "account-long"


class Size(NamedTuple):
    """How long a log is.

    Attributes:
        sent: how many commands it has.
        reserved: up to which of them there are copies, of all but the first.
        states: for how many of them there are versions of states.
    """

    sent: int
    reserved: int
    states: int


# With the copies, and an event of every tenth of these.
SIZES = {
    "10,000": Size(8_000, 2_001, 2_000),
    "1,000,000": Size(800_000, 200_001, 200_000),
}


LARGE = (
    "message_store.messages",
    "reservation.states",
    "reservation.state_horizons",
    "reservation.snapshots",
    "reservation.passes",
    "reservation.processed_for_ever",
    "reservation.scheduled",
    "reservation.dead_letters",
    "reservation.revisions",
    "reservation.revision_counters",
    "reservation.http_requests",
)
OPEN_LETTERS = 200  # of the commands, from the first thousand on
# Its partitions are made while the log is written. Only their pages are counted.
PARTITIONED = "reservation.processed_for_a_time"


COMMANDS_SENT = """
INSERT INTO message_store.messages
  (global_position, stream_name, position, type, data, metadata)
SELECT n,
       'account:command-' || CASE WHEN long_position IS NULL THEN n::text ELSE 'long' END,
       coalesce(long_position, 0),
       'Deposit',
       jsonb_build_object('depositId', 'd' || n, 'accountId', '1', 'amount', n,
                          'time', '2026-01-01T00:00:00Z'),
       CASE WHEN mod(n, 5) = 0 THEN '{"correlationStreamName": "frequent-1"}'::jsonb
            WHEN mod(n, %(rare)s) = 1 THEN '{"correlationStreamName": "rare-1"}' END
FROM generate_series(%(first)s::int, %(last)s::int) AS n
LEFT JOIN LATERAL (SELECT (n - %(small)s) / 10 - 1 AS long_position) AS long
  ON mod(n, 10) = 0 AND n > %(small)s
"""


COPIES = """
INSERT INTO message_store.messages
  (global_position, stream_name, position, type, data, metadata)
SELECT %(sent)s + 2 * global_position, 'accountTransaction-1+' || (data->>'depositId'), 0, type,
       data,
       jsonb_build_object('causationMessageStreamName', stream_name,
                          'causationMessageGlobalPosition', global_position)
FROM message_store.messages
WHERE global_position BETWEEN %(first)s AND %(last)s AND global_position BETWEEN 2 AND %(reserved)s
"""


# Of every tenth copy, in one long stream.
EVENTS = """
INSERT INTO message_store.messages
  (global_position, stream_name, position, type, data, metadata)
SELECT %(sent)s + 2 * n + 1, 'account-long', (n - %(small)s) / 10 - 1, 'Deposited', '{}',
       jsonb_build_object('causationMessageStreamName', 'accountTransaction-1+d' || n,
                          'causationMessageGlobalPosition', %(sent)s + 2 * n)
FROM generate_series(%(first)s::int, least(%(last)s, %(reserved)s)::int) AS n
WHERE mod(n, 10) = 0 AND n > %(small)s
"""


# A version for each of the first commands: one in ten in a long stream, where one in ten holds the
# whole; the others in streams of their own, half of which lost some. And streams of four that are
# old.
VERSIONS_STORED = """
INSERT INTO reservation.states (
  stream_name, position, message_id, category, global_position, base, state, given, outputs,
  time)
SELECT v.stream_name, v.position, md5(v.message)::uuid, 'account:command', n, v.base,
       '{}', '{}', '[]', now() - CASE WHEN v.old THEN '2 days'::interval ELSE '0' END
FROM generate_series(%(first)s::int, least(%(last)s, %(states)s)::int) AS n
CROSS JOIN LATERAL (
  SELECT 'old:state-' || n / 4, mod(n, 4), 'old ' || n, mod(n, 4), true
  UNION ALL
  SELECT 'account:state-long', at, 'state ' || n, at - mod(at, 10), true
  FROM (SELECT (n - %(small)s) / 10 - 1 AS at) AS long
  WHERE mod(n, 10) = 0 AND n > %(small)s
  UNION ALL
  SELECT 'account:state-' || n, 0, 'state ' || n, 0, false
  WHERE mod(n, 10) > 0 OR n <= %(small)s
) AS v(stream_name, position, message, base, old)
"""


VERSIONS_REMOVED = """
INSERT INTO reservation.state_horizons (stream_name, expired)
SELECT 'account:state-' || n, '{"account:command": 1}'
FROM generate_series(%(first)s::int, least(%(last)s, %(states)s)::int) AS n
WHERE mod(n, 2) = 0
"""


# What else is kept beside the log: for every tenth command, and of those that begin a stream.
SNAPSHOTS = """
INSERT INTO reservation.snapshots (stream_name, position, revision, data, event_id)
SELECT stream_name, position, '1', '{"balance": 1}', id FROM message_store.messages
WHERE global_position BETWEEN %(first)s AND %(last)s AND global_position > %(small)s
  AND mod(global_position, 10) = 1
"""


PASSES = """
INSERT INTO reservation.passes (consumer, category, global_position, message_id, reason)
SELECT 'account', 'accountTransaction', n, md5('passed ' || n)::uuid, 'nothing'
FROM generate_series(%(first)s::int, %(last)s::int) AS n WHERE mod(n, 10) = 1
"""


HANDLERS = """
INSERT INTO reservation.processed_handlers (consumer, type) VALUES ('account', 'Deposit')
ON CONFLICT DO NOTHING
"""


PROCESSED = """
INSERT INTO reservation.processed_messages (handler, key, time, global_position, for_ever)
SELECT handler, 'd' || n, '2026-01-01', n, true
FROM reservation.processed_handlers, generate_series(%(first)s::int, %(last)s::int) AS n
WHERE type = 'Deposit' AND mod(n, 10) = 1
"""


SCHEDULED = """
INSERT INTO reservation.scheduled (id, due_at, stream_name, type, data, is_sent)
SELECT md5('scheduled ' || n)::uuid, now() + make_interval(days => 1, secs => n),
       'account:command-' || n, 'Deposit', '{}', true
FROM generate_series(%(first)s::int, %(last)s::int) AS n WHERE mod(n, 10) = 1
"""


# All but a few are history.
LETTERS = """
INSERT INTO reservation.dead_letters (
  consumer, category, global_position, message_id, stream_name, type, entity, state, reason,
  process)
SELECT 'account', 'accountTransaction', n, md5('letter ' || n)::uuid,
       'accountTransaction-' || n || '+' || n, 'Deposit', 'account-' || n,
       CASE WHEN n < 50 THEN 'dead' ELSE 'handled' END, 'handler', 'host:1'
FROM generate_series(%(first)s::int, %(last)s::int) AS n WHERE mod(n, 10) = 1
"""


# Of commands, so that there is something to handle again: a hundred that have waited long enough,
# and what is parked behind them. All others are history.
RETRIED = """
INSERT INTO reservation.dead_letters (
  consumer, category, global_position, message_id, stream_name, type, entity, state, reason,
  process, next_attempt_at)
SELECT 'account', 'account:command', n, m.id, m.stream_name, m.type,
       CASE WHEN n > 50 THEN 'account-' || n - mod(n, 10) END,
       CASE WHEN n > 1000 THEN 'handled' WHEN mod(n, 10) = 3 THEN 'parked'
            ELSE 'waiting' END,
       CASE mod(n, 10) WHEN 3 THEN 'parked' ELSE 'handler' END, 'host:1',
       CASE WHEN n <= 1000 AND mod(n, 10) = 2 THEN now() - interval '1 day' END
FROM generate_series(%(first)s::int, %(last)s::int) AS n
JOIN message_store.messages m ON m.global_position = n
WHERE mod(n, 10) IN (2, 3)
"""


# Of what is parked.
CORRECTIONS = """
UPDATE reservation.dead_letters d
SET data = m.data || '{"amount": 1}', correction = d.global_position
FROM message_store.messages m
WHERE m.global_position = d.global_position AND d.category = 'account:command'
  AND d.global_position BETWEEN %(first)s AND %(last)s
  AND d.global_position > %(small)s AND mod(d.global_position, 10) = 3
"""


REVISIONS = """
INSERT INTO reservation.revisions (consumer, category, entity_stream, source, revision)
SELECT 'account', 'accountTransaction', 'account-' || n, '', 1
FROM generate_series(%(first)s::int, %(last)s::int) AS n WHERE mod(n, 10) = 1
"""


COUNTERS = """
INSERT INTO reservation.revision_counters (name, revision)
SELECT 'account-' || n, 1
FROM generate_series(%(first)s::int, %(last)s::int) AS n WHERE mod(n, 10) = 1
"""


# Of a handler that forgets.
FORGETFUL = """
INSERT INTO reservation.processed_handlers (consumer, type, keep)
VALUES ('account', 'Withdraw', '10 years') ON CONFLICT DO NOTHING
"""


DAY_MADE = """
SELECT reservation.make_processed_partition(handler, '2026-01-01')
FROM reservation.processed_handlers WHERE type = 'Withdraw'
"""


PROCESSED_THAT_DAY = """
INSERT INTO reservation.processed_messages (handler, key, time, global_position, for_ever)
SELECT handler, 'd' || n, '2026-01-01', n, false
FROM reservation.processed_handlers, generate_series(%(first)s::int, %(last)s::int) AS n
WHERE type = 'Withdraw' AND mod(n, 10) = 1
"""


REQUESTS = """
INSERT INTO reservation.http_requests (role, id, fingerprint, answered_at, status, headers, body)
SELECT reservation.http_role(), md5('request ' || n)::uuid, 'asked', now(), 200, '[]', 'answer'
FROM generate_series(%(first)s::int, %(last)s::int) AS n WHERE mod(n, 10) = 1
"""


FILL = (
    COMMANDS_SENT,
    COPIES,
    EVENTS,
    VERSIONS_STORED,
    VERSIONS_REMOVED,
    SNAPSHOTS,
    PASSES,
    HANDLERS,
    PROCESSED,
    SCHEDULED,
    LETTERS,
    RETRIED,
    CORRECTIONS,
    REVISIONS,
    COUNTERS,
    FORGETFUL,
    DAY_MADE,
    PROCESSED_THAT_DAY,
    REQUESTS,
)


class Work(NamedTuple):
    """A call, and how much of the store it may touch for its batch.

    Attributes:
        rows: how many rows of the large tables it reads at most.
        buffers: how many pages of tables and indexes at most.
        do: the call.
    """

    rows: int
    buffers: int
    do: Callable[[Connection], object]


class Counted(NamedTuple):
    """What a call did.

    Attributes:
        scanned: how many rows of the large tables it read without an index.
        fetched: how many of their rows it got through an index.
        buffers: how often it read a page of a table or an index, from memory or from the disk.
        result: what it returned.
    """

    scanned: int
    fetched: int
    buffers: int
    result: object


def run(connection, do) -> Counted:
    """Run a call, count and roll back."""
    with connection.transaction():
        connection.execute("SET LOCAL message_store.sql_condition = 'on'")
        before = counts(connection)
        result = do(connection)
        after = counts(connection)
        raise Rollback
    return Counted(*(now - then for now, then in zip(after, before, strict=True)), result)


# The server counts for each session what its transaction touched, whatever functions and triggers
# the statements ran in. The pages are those of all tables and indexes of the store.
COUNTS = """
SELECT (SELECT sum(seq_tup_read)::int FROM pg_stat_xact_user_tables WHERE relid = ANY (t.large)),
       (SELECT sum(idx_tup_fetch)::int FROM pg_stat_xact_user_tables WHERE relid = ANY (t.large)),
       (SELECT sum(pg_stat_get_xact_blocks_fetched(c.oid))::int
        FROM pg_class c
        WHERE relnamespace IN ('message_store'::regnamespace, 'reservation'::regnamespace))
FROM (SELECT %s::regclass[] AS large) AS t
"""


def counts(connection) -> tuple[int, int, int]:
    """Return what this session's transaction scanned, fetched and read, as in `Counted`."""
    return connection.execute(COUNTS, [list(LARGE)]).fetchone()


def fill(connection, size, first, last):
    """Write a part of the commands, the copies of all but the first of them, and the rest."""
    bounds = {"first": first, "last": last, "small": SMALL, "rare": size.sent // 10}
    bounds |= size._asdict()
    for query in FILL:
        connection.execute(query, bounds)


def analyze(connection):
    for table in (*LARGE, PARTITIONED):
        connection.execute(f"ANALYZE {table}")


def call(query, *values):
    return lambda c: c.execute(query, values).fetchall()


def plan(connection, calls):
    """Repeat every call until PostgreSQL may choose a generic plan and keep it."""
    for _ in range(6):
        for work in calls:
            # Nothing is there yet to reserve, and Message DB's own functions need a search_path.
            with contextlib.suppress(StoreError, UndefinedTable):
                run(connection, work.do)
