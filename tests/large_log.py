"""A log of 100,000 messages with 40,000 versions of states, and calls that read and write it."""

import contextlib
import hashlib
import itertools
import uuid
from datetime import datetime, timedelta
from typing import NamedTuple

from psycopg import Rollback
from psycopg.errors import UndefinedTable

from bank import account
from bank.entity import Account
from bank.messages import Deposit
from consumers.story.content.entries import Meaning
from consumers.story.story import tell
from reservation import Component, MessageStore, Metadata, StoredMessage, Write
from reservation.entity.projection import Loaded
from reservation.entity.snapshots import Snapshots
from reservation.errors import StoreError
from reservation.idempotence.in_events.event_causes import causes
from reservation.idempotence.reserve import (
    compare_initiations,
    first_initiated,
    first_reserved,
    reserve,
)
from reservation.idempotence.server_keys import read_commands, server_rules
from reservation.idempotence.state_based.clean_up import clean_up_states, count_removable
from reservation.idempotence.state_based.states import States, Version
from reservation.idempotence.strategy import Incoming
from reservation.maintenance.event_types import unknown_types
from reservation.messages.ids import uuid7
from reservation.store.partition import Partition
from tests.controls import deposit

COMMANDS, LONG = "account:command", "account:command-long"


SENT, RESERVED = 80_000, 20_001  # of which the first is not
SMALL = 200  # how many there are when the older session plans; the long stream begins after it
BATCH = 100
DAY = timedelta(days=1)


RULES = server_rules(account.reservations)


LARGE = ("message_store.messages", "reservation.states", "reservation.state_horizons")


COMMANDS_SENT = """
INSERT INTO message_store.messages
  (global_position, stream_name, position, type, data, metadata)
SELECT n,
       'account:command-' || CASE WHEN long_position IS NULL THEN n::text ELSE 'long' END,
       coalesce(long_position, 0),
       'Deposit',
       jsonb_build_object('depositId', 'd' || n, 'accountId', '1', 'amount', n),
       CASE WHEN mod(n, 5) = 0 THEN '{"correlationStreamName": "frequent-1"}'::jsonb
            WHEN mod(n, 8000) = 1 THEN '{"correlationStreamName": "rare-1"}' END
FROM generate_series(%(first)s::int, %(last)s::int) AS n
LEFT JOIN LATERAL (SELECT (n - %(small)s) / 10 - 1 AS long_position) AS long
  ON mod(n, 10) = 0 AND n > %(small)s
"""


COPIES = """
INSERT INTO message_store.messages
  (global_position, stream_name, position, type, data, metadata)
SELECT %(sent)s + global_position, 'accountTransaction-1+' || (data->>'depositId'), 0, type, data,
       jsonb_build_object('causationMessageGlobalPosition', global_position)
FROM message_store.messages
WHERE global_position BETWEEN %(first)s AND %(last)s AND global_position BETWEEN 2 AND %(reserved)s
"""


# A version for each of the first commands: one in ten in a long stream, where one in ten holds the
# whole; the others in streams of their own, half of which lost some. And streams of four that are
# old.
STATES = 20_000
LONG_STATE, OLD_STATES = "account:state-long", "old:state"


VERSIONS_STORED = """
INSERT INTO reservation.states (
  stream_name, position, message_id, category, global_position, base, state, given, outputs,
  outputs_hash, published, time)
SELECT v.stream_name, v.position, md5(v.message)::uuid, 'account:command', n, v.base,
       '{}', '{}', '[]', '', v.old, now() - CASE WHEN v.old THEN '2 days'::interval ELSE '0' END
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


class Work(NamedTuple):
    """A call, and how many rows of the large tables it may fetch for its batch."""

    rows: int
    do: object


def part(**options):
    """Return a read of a part of the category, of one batch."""

    def read(c):
        found = MessageStore(c).read_category(COMMANDS, batch_size=BATCH, **options)
        return list(itertools.islice(found, BATCH))

    return read


def call(query, *values):
    return lambda c: c.execute(query, values).fetchall()


def member(size, **options):
    """Return the options of a member that does not have the long stream."""
    return {"consumer_group_member": 1, "consumer_group_size": size, **options}


def reserve_reissues(c):
    """Reserve a batch of which one command is new."""
    commands = [(n, f"accountTransaction-1+d{n}") for n in range(1, BATCH + 1)]
    return reserve(c, commands, {"Deposit": ["time"]})


def write_again(c):
    """Write a batch, then the same one again with one message more."""
    writes = [Write(deposit(f"n{n}"), LONG, id=uuid7()) for n in range(BATCH)]
    MessageStore(c).write_batch(writes)
    return MessageStore(c).write_batch([*writes, Write(deposit("new"), LONG)])


def write_one_again(c):
    store, id_ = MessageStore(c), uuid7()
    return [store.write(deposit(), LONG, id=id_) for _ in range(2)]


def keep_snapshots(c):
    """Write a batch of snapshots, and read them."""
    snapshots = Snapshots(c, Account, 1, "1")
    entities = {f"{COMMANDS}-{n}": Loaded(Account(), 0, started=True) for n in range(1, BATCH + 1)}
    assert not snapshots.write(entities)
    return snapshots.read(entities)


def look_for_causes(c):
    """Look at the events of a long stream, and of others, from near their ends on."""
    handled = Metadata(local_properties={"messageId": "m"})
    MessageStore(c).write(deposit(), LONG, metadata=handled)
    time = datetime(2026, 1, 1)  # noqa: DTZ001  as the store gives it
    message = StoredMessage("m", LONG, "Deposit", 0, SENT - 100, None, None, time)
    streams = [LONG, *(f"{COMMANDS}-{n}" for n in range(1, BATCH))]
    return causes(c, [Incoming(message, deposit(), name) for name in streams])


def version(n):
    """Return the id of the message that made a version."""
    return hashlib.md5(f"state {n}".encode(), usedforsecurity=False).hexdigest()


def append(c):
    """Store versions, in new streams and behind the end of the long one."""
    versions = [
        Version(stream, at, uuid.uuid4(), COMMANDS, n, at, "{}", "{}", "[]", "")
        for n in range(BATCH // 2)
        for stream, at in ((f"new:state-{n}", 0), (LONG_STATE, 10 * STATES + n))
    ]
    return States(c).append(versions)


def of_transactions():
    """Return a component whose events would be what is reserved here."""
    component = Component("accountTransaction", entity=Account, id="account_id")
    component.handle(Deposit)(lambda *_: None)
    return component


CATEGORY = "SELECT * FROM message_store.get_category_messages(%s, %s, %s"


WORK = {
    "a batch from the start": Work(BATCH, part()),
    "a batch from the middle": Work(BATCH, part(position=SENT // 2)),
    "a batch from the end": Work(BATCH, part(position=SENT - 10)),
    "a category that is empty": Work(
        0, lambda c: MessageStore(c).category_batch("account", Partition(), BATCH)
    ),
    "a frequent correlation": Work(BATCH, part(correlation="frequent")),
    "a rare correlation": Work(11, part(correlation="rare")),
    "a rare correlation from the middle": Work(6, part(correlation="rare", position=SENT // 2)),
    "a correlation that there is not": Work(0, part(correlation="absent")),
    # One in ten is of the long stream; the rest is shared out evenly.
    "a member of two": Work(3 * BATCH, part(**member(2))),
    "a member of five": Work(7 * BATCH, part(**member(5))),
    "a member of five from the middle": Work(7 * BATCH, part(**member(5, position=SENT // 2))),
    "a member and a frequent correlation": Work(
        9 * BATCH, part(**member(4, correlation="frequent"))
    ),
    "a member and a rare correlation": Work(11, part(**member(2, correlation="rare"))),
    "commands with their keys": Work(
        BATCH, lambda c: read_commands(c, COMMANDS, Partition(), BATCH, RULES)
    ),
    "commands with their keys from the middle": Work(
        BATCH, lambda c: read_commands(c, COMMANDS, Partition(SENT // 2), BATCH, RULES)
    ),
    "the start of a long stream": Work(
        BATCH,
        lambda c: list(
            itertools.islice(MessageStore(c).read_stream(LONG, batch_size=BATCH), BATCH)
        ),
    ),
    "many streams": Work(
        BATCH,
        lambda c: MessageStore(c).read_streams({f"{COMMANDS}-{n}": 0 for n in range(1, BATCH)}),
    ),
    # Each is held to the event that it names, when it is written and when it is read.
    "the snapshots of many streams": Work(2 * BATCH, keep_snapshots),
    # Of the long stream one in ten; of the others the last, to see that it is an old one.
    "what brought about the events": Work(BATCH + 15, look_for_causes),
    # Of each its own version, the newest and what was removed.
    "states of messages that were handled before": Work(
        3 * BATCH,
        lambda c: States(c).look(
            [(f"account:state-{n}", version(n)) for n in range(1, BATCH) if n % 10]
            + [(LONG_STATE, version(n)) for n in range(1010, 1100, 10)]
        ),
    ),
    "states of messages that are new": Work(
        2 * BATCH,
        lambda c: States(c).look([(f"account:state-{n}", str(uuid7())) for n in range(1, BATCH)]),
    ),
    # Nine changes at most to be made to each, and the one that is wanted to know which.
    "states of a long stream": Work(
        11 * BATCH, lambda c: States(c).read((LONG_STATE, n) for n in range(500, 500 + BATCH))
    ),
    "the newest state of a long stream": Work(12, lambda c: States(c).newest(LONG_STATE) or ""),
    "storing versions": Work(1, append),
    "marking versions as published": Work(
        BATCH, lambda c: States(c).publish([(LONG_STATE, n) for n in range(500, 500 + BATCH)])
    ),
    # Of a hundred streams all four, twice, their ends twice, and those that are removed.
    "removing old versions": Work(
        11 * BATCH,
        lambda c: clean_up_states(c, DAY, category=OLD_STATES, at_once=BATCH),
    ),
    "removing old versions from the middle": Work(
        11 * BATCH,
        lambda c: clean_up_states(
            c, DAY, category=OLD_STATES, start=f"{OLD_STATES}-4", at_once=BATCH
        ),
    ),
    # All of it that may go is looked at: whether it is needed, and what comes first.
    "removing old versions of a long stream": Work(
        2 * STATES // 10 + 4 * BATCH,
        lambda c: clean_up_states(
            c, DAY, category="account:state", start=LONG_STATE, at_once=BATCH
        ),
    ),
    "counting what may be removed where there is nothing": Work(
        5, lambda c: [count_removable(c, DAY, category="account:stat")]
    ),
    "the last message of a long stream": Work(1, lambda c: MessageStore(c).last_message(LONG)),
    "the version of a long stream": Work(1, lambda c: MessageStore(c).stream_version(LONG)),
    "looking for ids": Work(
        0, lambda c: MessageStore(c).stored_ids([uuid7() for _ in range(BATCH)])
    ),
    "writing one message": Work(1, lambda c: MessageStore(c).write(deposit(), LONG)),
    "writing one message again": Work(2, write_one_again),
    "writing the first message of a stream": Work(
        0, lambda c: MessageStore(c).write_initial(deposit(), "account:command-new")
    ),
    "writing a batch": Work(
        BATCH,
        lambda c: MessageStore(c).write_batch([Write(deposit(), LONG) for _ in range(BATCH)]),
    ),
    "writing a batch again": Work(5 * BATCH, write_again),
    "reserving what is new": Work(
        BATCH,
        lambda c: reserve(c, [(n, f"new-{n}") for n in range(1, BATCH)], {"Deposit": ["time"]}),
    ),
    "reserving reissues": Work(3 * BATCH, reserve_reissues),
    "reserving many of one key": Work(
        3 * BATCH,
        lambda c: reserve(c, [(n, f"new-{n % 3}") for n in range(1, BATCH)], {"Deposit": []}),
    ),
    "comparing what initiated": Work(
        3 * BATCH,
        lambda c: compare_initiations(
            c,
            [(n, f"accountTransaction-1+d{n}") for n in range(2, BATCH)],
            {"Deposit": ["time"]},
        ),
    ),
    # The commands, what was reserved under the former name of some, and of the others.
    "what was reserved first": Work(
        4 * BATCH,
        lambda c: first_reserved(
            c,
            [(n, f"accountTransaction-1+d{n}") for n in range(2, BATCH)],
            [f"accountTransaction-1+d{n - 1}" if n % 2 else None for n in range(2, BATCH)],
        ),
    ),
    "what initiated": Work(
        3 * BATCH,
        lambda c: first_initiated(c, [(n, f"accountTransaction-1+d{n}") for n in range(2, BATCH)]),
    ),
    # Where two places are close, some events are looked at twice.
    "a sample of the types of events": Work(
        12 * 201, lambda c: unknown_types(c, of_transactions())
    ),
    "a category as Message DB reads it": Work(BATCH, call(CATEGORY + ")", COMMANDS, 50, BATCH)),
    "a frequent correlation as Message DB reads it": Work(
        BATCH, call(CATEGORY + ", 'frequent')", COMMANDS, 50, BATCH)
    ),
    "a rare correlation as Message DB reads it": Work(
        11, call(CATEGORY + ", 'rare')", COMMANDS, 1, BATCH)
    ),
    "a member as Message DB reads it": Work(
        7 * BATCH, call(CATEGORY + ", NULL, 1, 5)", COMMANDS, 1, BATCH)
    ),
    "a member and a rare correlation as Message DB reads it": Work(
        11, call(CATEGORY + ", 'rare', 1, 2)", COMMANDS, 1, BATCH)
    ),
    "a condition as Message DB reads it": Work(
        2 * BATCH,
        call(CATEGORY + ", NULL, NULL, NULL, 'global_position %% 2 = 0')", COMMANDS, 1, BATCH),
    ),
    "all of it as Message DB reads it": Work(
        11, call(CATEGORY + ", 'rare', 1, 2, 'position = 0')", COMMANDS, 1, BATCH)
    ),
    "a stream as Message DB reads it": Work(
        BATCH,
        call("SELECT * FROM message_store.get_stream_messages(%s, 50, %s)", LONG, BATCH),
    ),
    "a condition on a stream as Message DB reads it": Work(
        2 * BATCH,
        call(
            "SELECT * FROM message_store.get_stream_messages(%s, 50, %s, 'position %% 2 = 0')",
            LONG,
            BATCH,
        ),
    ),
    "the last message as Message DB reads it": Work(
        1, call("SELECT * FROM message_store.get_last_stream_message(%s)", LONG)
    ),
    # The log after the command, and the same part of the category of commands; and what is found.
    "the story of a key": Work(42_000, lambda c: tell(c, "1+d15000").entries),
    "the story of a reissue": Work(42_000, lambda c: tell(c, "account:command-15001").entries),
    # Each page counts: its messages, and where a second one begins.
    "a page of a long stream": Work(3 * 60, lambda c: tell(c, LONG, after=4_000).entries),
    "a page of a correlation": Work(
        61_000, lambda c: tell(c, "rare-1", meaning=Meaning.CORRELATION, after=0).entries
    ),
    "writing as Message DB does": Work(
        2,
        call(
            "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Deposit', '{}',"
            " NULL, message_store.stream_version(%s))",
            LONG,
            LONG,
        ),
    ),
}


class Counted(NamedTuple):
    """What a call did: the rows of the log that it scanned and fetched, and its result."""

    scanned: int
    fetched: int
    result: object


def run(connection, do) -> Counted:
    """Run a call, count and roll back."""
    with connection.transaction():
        connection.execute("SET LOCAL message_store.sql_condition = 'on'")
        before = counts(connection)
        result = do(connection)
        scanned, fetched = counts(connection)
        raise Rollback
    return Counted(scanned - before[0], fetched - before[1], result)


def counts(connection) -> tuple[int, int]:
    """Return the rows of the large tables that this session scanned, and got through an index."""
    return connection.execute(
        "SELECT sum(seq_tup_read)::int, sum(idx_tup_fetch)::int FROM pg_stat_xact_user_tables "
        "WHERE relid = ANY (%s::regclass[])",
        [list(LARGE)],
    ).fetchone()


def fill(connection, first, last):
    """Write a part of the commands, and the copies of all but the first of them."""
    bounds = {"first": first, "last": last, "small": SMALL}
    bounds |= {"sent": SENT, "reserved": RESERVED, "states": STATES}
    for query in (COMMANDS_SENT, COPIES, VERSIONS_STORED, VERSIONS_REMOVED):
        connection.execute(query, bounds)


def analyze(connection):
    for table in LARGE:
        connection.execute(f"ANALYZE {table}")


def plan(connection):
    """Repeat every call until PostgreSQL may choose a generic plan and keep it."""
    for _ in range(6):
        for work in WORK.values():
            # Nothing is there yet to reserve, and Message DB's own functions need a search_path.
            with contextlib.suppress(StoreError, UndefinedTable):
                run(connection, work.do)
