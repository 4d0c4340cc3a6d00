"""How much of a log of 10,000 messages each call touches, counted by the server.

The log was never analyzed, and the session planned its calls while it was small. The soak tests do
so with every statement, in larger logs.
"""

import itertools

import pytest
from psycopg import connect

from bank import account
from bank.messages import Deposit
from reservation import MessageStore, Write
from tests.apps.bank import drain
from tests.support.controls import deposit
from tests.support.large_log import (
    BATCH,
    COMMANDS,
    LARGE,
    LONG,
    SIZES,
    SMALL,
    Work,
    call,
    fill,
    plan,
    run,
)
from tests.support.stored_positions import store_position
from tests.support.watching import until

SIZE = SIZES["10,000"]
MIDDLE = SIZE.sent // 2


def category(**options):
    """Return a read of a batch of the category."""
    return lambda c: list(
        itertools.islice(
            MessageStore(c).read_category(COMMANDS, batch_size=BATCH, **options), BATCH
        )
    )


def ask(key):
    """Return a question about a deposit, by its key."""
    return lambda c: MessageStore(c).outcome(account.question(Deposit, key=key, entity="1"))


CALLS = {
    "the start of a category": Work(BATCH, 20, category()),
    "the middle of a category": Work(BATCH, 20, category(position=MIDDLE)),
    "a correlation": Work(BATCH, 40, category(correlation="frequent")),
    "a rare correlation": Work(11, SIZE.sent // 80 + 50, category(correlation="rare")),
    "a member of two": Work(
        3 * BATCH, 20, category(consumer_group_member=1, consumer_group_size=2)
    ),
    "many streams": Work(
        BATCH,
        500,
        lambda c: MessageStore(c).read_streams({f"{COMMANDS}-{n}": 0 for n in range(1, BATCH)}),
    ),
    "the last message of a long stream": Work(1, 10, lambda c: MessageStore(c).last_message(LONG)),
    "the version of a long stream": Work(1, 10, lambda c: MessageStore(c).stream_version(LONG)),
    "writing one message": Work(1, 30, lambda c: MessageStore(c).write(deposit(), LONG)),
    "writing a batch": Work(
        BATCH,
        2200,
        lambda c: MessageStore(c).write_batch([Write(deposit(), LONG) for _ in range(BATCH)]),
    ),
    "the outcome of what was reserved": Work(10, 40, ask(f"d{SIZE.reserved}")),
    "the outcome of what is unknown": Work(10, 30, ask("unknown")),
    "a stream as Message DB reads it": Work(
        BATCH,
        40,
        call("SELECT * FROM message_store.get_stream_messages(%s, 50, %s)", LONG, BATCH),
    ),
    "a category as Message DB reads it": Work(
        BATCH,
        20,
        call("SELECT * FROM message_store.get_category_messages(%s, 50, %s)", COMMANDS, BATCH),
    ),
}


@pytest.fixture
def older(database_url):
    """Give a session that is older than most of the log."""
    with connect(database_url, autocommit=True) as session:
        with connect(database_url, autocommit=True) as filling:
            for table in LARGE:
                filling.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            # What the calls write, and is rolled back, takes no number of what is to come.
            filling.execute(
                "ALTER SEQUENCE message_store.messages_global_position_seq RESTART 10000000"
            )
            plan(session, CALLS.values())
            fill(filling, SIZE, 1, SMALL)
            fill(filling, SIZE, SMALL + 1, SIZE.sent)
        yield session


def test_no_call_touches_more_than_its_batch(older):
    """No call of a client reads more rows and pages than its batch needs."""
    excess = {}
    for name, work in CALLS.items():
        run(older, work.do)  # what others have rolled back is passed over from then on
        counted = run(older, work.do)
        if counted.scanned + counted.fetched > work.rows or counted.buffers > work.buffers:
            excess[name] = counted._replace(result=None)
    assert excess == {}


SESSIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'
"""
READ = "SELECT sum(seq_tup_read + idx_tup_fetch)::int FROM pg_stat_user_tables"


def rows_read(connection, **counts):
    """Return how many rows a consumer reads that handles what there is, and starts for that."""
    read = []
    for work in (dict, lambda: drain(connection, batch_size=BATCH).counts):
        found = work()
        # What a session read is counted for it when it ends. Left are two of the test, and the one
        # that empties its database.
        until(lambda: connection.execute(SESSIONS).fetchone() == (3,))
        read.append(connection.execute(READ).fetchone()[0])
    assert found == counts
    return read[1] - read[0]


@pytest.mark.usefixtures("older")
def test_a_consumer_touches_no_more_than_its_batch(connection, store):
    """A consumer reads what is left, however much it has read, and not the rest of the log."""
    store_position(connection, "account", COMMANDS, SIZE.sent)
    store_position(connection, "account", "accountTransaction", SIZE.sent + 2 * SIZE.reserved)
    drain(connection)  # the letters that are due
    starting = rows_read(connection)
    store.write([deposit(f"new{n}") for n in range(BATCH)], f"{COMMANDS}-new")
    working = rows_read(connection, reserved=BATCH, handled=BATCH)
    assert working - starting < 10 * BATCH
