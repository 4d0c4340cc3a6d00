"""An answer that rests on a commit of another session comes after the flush of that commit."""

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import IsolationLevel, conninfo

from bank.component import account
from reservation import NO_STREAM, AsyncMessageStore, Cancellation, MessageStore, Write
from reservation.errors import (
    CommitUnknownError,
    ExpectedVersionError,
    MessageIdConflictError,
    StatementCanceledError,
)
from tests.store.clients import CLIENTS, in_loop
from tests.support.consuming import until
from tests.support.controls import COMMANDS, deposit

KNOWN = uuid.UUID(int=7)
AGAIN = Write(deposit(), COMMANDS, KNOWN)
FIRST = [Write(deposit("d2"), COMMANDS, expected_version=-1)]
OTHER = Write(deposit("other"), COMMANDS, KNOWN)


async def answered(call, sender, expected):
    """Await an answer, or the error that is one."""
    if isinstance(expected, type):
        with pytest.raises(expected):
            await call(sender)
    else:
        assert await call(sender) == expected


ANSWERS = {
    "a position": (lambda s: s.write(deposit("d2"), COMMANDS), 1),
    "the position of a repeated id": (lambda s: s.write_batch([AGAIN]), [0]),
    "those of a repeated batch": (lambda s: s.write_batch([AGAIN, AGAIN]), [0, 0]),
    "those of a batch that repeats some": (
        lambda s: s.write_batch([AGAIN, Write(deposit("d2"), COMMANDS)]),
        [0, 1],
    ),
    "a version error": (lambda s: s.write_initial(deposit("d2"), COMMANDS), ExpectedVersionError),
    "a version error of a batch": (lambda s: s.write_batch(FIRST * 2), ExpectedVersionError),
    "an id error": (lambda s: s.write_batch([OTHER]), MessageIdConflictError),
    "an id error of a batch": (
        lambda s: s.write_batch([OTHER, Write(deposit("d2"), COMMANDS)]),
        MessageIdConflictError,
    ),
    "that it is too late to cancel": (lambda s: s.cancel(KNOWN), Cancellation.WRITTEN),
    "an id error of a schedule": (
        lambda s: s.write(deposit("other"), COMMANDS, id=KNOWN, after="1h"),
        MessageIdConflictError,
    ),
}
REFUSALS = {name: call for name, call in ANSWERS.items() if isinstance(call[1], type)}


@pytest.fixture
def unflushed(database_url, connection):
    """Store a message whose commit is not flushed, as an early release leaves it for a while."""
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("SET synchronous_commit = off")
        MessageStore(other).write(deposit(), COMMANDS, id=KNOWN)
        ((lsn,),) = other.execute("SELECT pg_current_wal_insert_lsn()").fetchall()
    query = "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn"
    return lambda: connection.execute(query, [lsn]).fetchall() == [(True,)]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("call", "expected"), ANSWERS.values(), ids=ANSWERS)
@in_loop
async def test_an_answer_comes_after_the_flush(client, database_url, unflushed, call, expected):
    """Whatever a sender hears of a message of another, a crash cannot take that away."""
    async with await client.open(database_url) as sender:
        await answered(call, sender, expected)
    assert unflushed()


@pytest.mark.parametrize("client", CLIENTS)
@in_loop
async def test_an_outcome_comes_after_the_flush(client, database_url, unflushed):
    """That a command is there, and waits to be handled, rests on its commit."""
    async with await client.open(database_url) as sender:
        assert (await sender.outcome(deposit(), account)).state == "pending"
    assert unflushed()


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("call", [call for call, _ in REFUSALS.values()], ids=REFUSALS)
@pytest.mark.parametrize("wrote", [False, True], ids=["at its start", "after a write"])
@in_loop
async def test_a_refusal_within_a_transaction_of_the_caller_comes_after_the_flush(
    client, database_url, unflushed, call, wrote
):
    """It will not be committed, so the refusal waits within the transaction."""
    async with await client.connect(database_url) as connection:
        sender = client.on(connection)
        if wrote:
            await sender.write(deposit(), "other-1")
        with pytest.raises((ExpectedVersionError, MessageIdConflictError)):
            await call(sender)
        assert unflushed()
        await connection.rollback()


@pytest.mark.parametrize("client", CLIENTS)
@in_loop
async def test_a_refusal_of_gathered_writes_comes_after_the_flush(database_url, unflushed, client):
    """Each of them is refused by a statement of its own."""
    options = {"gather": True} if client.is_async else {}
    async with await client.open(database_url, **options) as sender:
        with pytest.raises(ExpectedVersionError):
            await sender.write_initial(deposit("d2"), COMMANDS)
    assert unflushed()


# Canceled


@pytest.fixture
def stuck(connection):
    """Give a function that lets what a statement calls, by name, take for ever."""

    def make(name, returns="void", result=""):
        connection.execute(
            f"CREATE OR REPLACE FUNCTION {name} RETURNS {returns} LANGUAGE plpgsql AS "
            f"$$ BEGIN PERFORM pg_sleep(3600); RETURN {result}; END $$"
        )

    return make


def contended(connection, database_url, write):
    """Let a write wait for the lock of its category, and get it; return its future."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock' AND wait_event = 'advisory'"
    )
    with psycopg.connect(database_url) as holder:
        MessageStore(holder).lock_categories([COMMANDS])
        answer = ThreadPoolExecutor(1).submit(asyncio.run, write)
        until(lambda: answer.done() or connection.execute(waiting).fetchall() == [(1,)])
    return answer


def cancel(connection, answer):
    """Cancel the statement that sleeps."""
    query = (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event = 'PgSleep'"
    )
    until(lambda: answer.done() or connection.execute(query).fetchall() == [(True,)])


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("messages", [1, 2])
def test_a_write_that_is_canceled_after_its_commit_may_be_stored(
    client, connection, database_url, store, stuck, messages
):
    """Between the commit and the flush the outcome is unknown, and writing again is harmless."""
    stuck("reservation.log_record()")
    batch = [Write(deposit(f"d{n}"), COMMANDS, uuid.uuid4()) for n in range(messages)]

    async def write():
        async with await client.open(database_url) as sender:
            return await sender.write_batch(batch)

    answer = contended(connection, database_url, write())
    cancel(connection, answer)
    with pytest.raises(CommitUnknownError, match="canceling statement") as caught:
        answer.result()
    assert caught.value.ids == tuple(one.id for one in batch)
    assert store.stream_version(COMMANDS) == messages - 1
    assert store.write_batch(batch) == list(range(messages))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_write_that_is_canceled_before_its_commit_is_not_stored(
    client, connection, database_url, store, stuck
):
    """Until the commit, a canceled write has certainly written nothing."""
    stuck("dawdle()", "trigger", "NULL")
    connection.execute(
        "CREATE TRIGGER dawdle AFTER INSERT ON message_store.messages EXECUTE FUNCTION dawdle()"
    )

    async def write():
        async with await client.open(database_url) as sender:
            return await sender.write(deposit(), COMMANDS)

    answer = contended(connection, database_url, write())
    cancel(connection, answer)
    with pytest.raises(StatementCanceledError):
        answer.result()
    assert store.stream_version(COMMANDS) == NO_STREAM


# Environment


def test_the_procedures_call_the_servers_own_functions(connection, database_url, store):
    """Nothing in another schema is taken for what a procedure means."""
    connection.execute(
        """
        CREATE SCHEMA hostile;
        CREATE FUNCTION hostile.refuse() RETURNS text LANGUAGE plpgsql
          AS $$ BEGIN RAISE 'hijacked'; END $$;
        CREATE FUNCTION hostile.current_setting(text) RETURNS text LANGUAGE sql
          RETURN hostile.refuse();
        CREATE FUNCTION hostile.set_config(text, text, boolean) RETURNS text LANGUAGE sql
          RETURN hostile.refuse();
        CREATE FUNCTION hostile.ne(text, text) RETURNS boolean LANGUAGE sql
          RETURN hostile.refuse() IS NULL;
        CREATE OPERATOR hostile.<> (FUNCTION = hostile.ne, LEFTARG = text, RIGHTARG = text);
        CREATE DOMAIN hostile.text AS pg_catalog.text CHECK (false);
        """
    )
    address = conninfo.make_conninfo(database_url, options="-csearch_path=hostile,pg_catalog")
    batch = [Write(deposit(f"d{n}"), COMMANDS) for n in range(2)]

    async def write():
        async with await AsyncMessageStore.open(address, gather=True) as sender:
            return (
                await sender.write_batch(batch[:1]),
                await sender.write_batch(batch),
                await asyncio.gather(*(sender.write(deposit(), COMMANDS) for _ in range(2))),
            )

    with (
        psycopg.connect(address) as hostile,
        pytest.raises(psycopg.errors.RaiseException, match="hijacked"),
    ):
        hostile.execute("SELECT 'a'::pg_catalog.text <> 'b'::pg_catalog.text")
    found = contended(connection, database_url, write()).result()
    assert found == ([0], [1, 2], [3, 4])


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
@pytest.mark.parametrize("client", CLIENTS)
def test_any_isolation_level_will_do(client, connection, database_url, store, level):
    """A session may have another default; whoever waited and lost writes again."""
    name = level.name.lower().replace("_", "\\ ")
    address = conninfo.make_conninfo(
        database_url, options=f"-cdefault_transaction_isolation={name}"
    )

    async def write():
        async with await client.open(address) as sender:
            return await sender.write(deposit(), COMMANDS)

    assert contended(connection, database_url, write()).result() == 0
    assert store.stream_version(COMMANDS) == 0
