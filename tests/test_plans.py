"""How much of a large store each statement touches, counted by the server."""

import pytest
from psycopg import Connection

from reservation import MessageStore, Write
from reservation.idempotence.reserve import compare_initiations, reserve
from reservation.uuid7 import uuid7
from tests.controls import deposit

SIZE = 20_000
BATCH = 100


@pytest.fixture(params=["never analyzed", "analyzed"])
def large(request, connection) -> Connection:
    """Fill the store with one long stream and many short ones of the same category."""
    connection.execute("ALTER TABLE message_store.messages SET (autovacuum_enabled = off)")
    store = MessageStore(connection)
    for start in range(0, SIZE, 1000):
        numbers = range(start, start + 1000)
        store.write_batch(
            [Write(deposit(f"d{n}"), f"account:command-{n if n % 2 else 'long'}") for n in numbers]
        )
    if request.param == "analyzed":
        connection.execute("ANALYZE message_store.messages")
    return connection


def counts(connection) -> tuple[int, int]:
    """Return the rows of the log that this session read by scanning it, and through an index."""
    return connection.execute(
        "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables "
        "WHERE relid = 'message_store.messages'::regclass"
    ).fetchone()


WORK = {
    "a batch from the start of a category": lambda c: MessageStore(c).category_batch(
        "account:command", 1, BATCH
    ),
    "a batch from the end of a category": lambda c: MessageStore(c).category_batch(
        "account:command", SIZE - 10, BATCH
    ),
    "a category that is empty": lambda c: MessageStore(c).category_batch("account", 1, BATCH),
    "the start of a long stream": lambda c: next(
        MessageStore(c).read_stream("account:command-long", batch_size=BATCH)
    ),
    "many streams": lambda c: MessageStore(c).read_streams(
        {f"account:command-{n}": 0 for n in range(1, 2 * BATCH, 2)}
    ),
    "the last message of a long stream": lambda c: MessageStore(c).last_message(
        "account:command-long"
    ),
    "the version of a long stream": lambda c: MessageStore(c).stream_version(
        "account:command-long"
    ),
    "writing a batch": lambda c: MessageStore(c).write_batch(
        [Write(deposit(), "account:command-long") for _ in range(BATCH)]
    ),
    "reserving a batch": lambda c: reserve(
        c, [(n, f"accountTransaction-{n % 50}") for n in range(1, BATCH)], {"Deposit": ["time"]}
    ),
    "comparing what initiated": lambda c: compare_initiations(
        c, [(n, "account:command-long") for n in range(1, BATCH)], {"Deposit": ["time"]}
    ),
    "looking for ids": lambda c: MessageStore(c).stored_ids([uuid7() for _ in range(BATCH)]),
    "reading as Message DB does": lambda c: c.execute(
        "SELECT * FROM message_store.get_category_messages('account:command', 50, 100)"
    ).fetchall(),
    "reading a stream as Message DB does": lambda c: c.execute(
        "SELECT * FROM message_store.get_stream_messages('account:command-long', 50, 100)"
    ).fetchall(),
    "writing as Message DB does": lambda c: c.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, 'account:command-long', "
        "'Deposit', '{}', NULL, message_store.stream_version('account:command-long'))"
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_no_statement_touches_more_than_its_batch(large, name):
    """Whatever the size of the log, and whether or not the planner knows it already."""
    with large.transaction():
        scanned_before, fetched_before = counts(large)
        WORK[name](large)
        scanned, fetched = counts(large)
    assert scanned == scanned_before
    assert fetched - fetched_before <= 4 * BATCH
