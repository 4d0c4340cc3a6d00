"""The lock of a category is released before the flush, and every answer waits for the flush."""

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest
from psycopg import conninfo

from benchmarks.slow_disk import compiler
from consumers.testing.embedded_server import server_folder
from reservation import AsyncMessageStore, MessageStore, Write
from reservation.admin import install
from reservation.errors import (
    CommitUnknownError,
    DatabaseUnavailableError,
    ExpectedVersionError,
)
from tests.soak.slow_server import SlowServer
from tests.support.commands import invoke_cli
from tests.support.consuming import until
from tests.support.controls import COMMANDS, deposit

pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no C compiler")

WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'advisory'
"""


@pytest.fixture(scope="module")
def disk():
    """Give a server whose flushes can be held."""
    with server_folder() as folder, closing(SlowServer(folder)) as made:
        yield made


@pytest.fixture
def reader(disk):
    """Give a session that reads a new store, and holds up nobody."""
    with psycopg.connect(disk.address, autocommit=True) as connection:
        for schema in ("message_store", "reservation"):
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        install(connection)
        yield connection


@pytest.fixture
def later():
    """Give a function that lets a thread do something; its future has the result."""
    with ThreadPoolExecutor(16) as threads:
        yield threads.submit


def version(reader, stream_name=COMMANDS):
    return MessageStore(reader).stream_version(stream_name)


@contextmanager
def contended(disk, reader, writers=1):
    """Hold the category's lock until so many writers wait for it, at the end of the block."""
    with psycopg.connect(disk.address) as holder:
        MessageStore(holder).lock_categories([COMMANDS])
        yield
        until(lambda: reader.execute(WAITING).fetchall()[0][0] == writers)
        # Nothing was written, so the end of this transaction needs no flush.


FLUSHING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'
  AND lower(wait_event) IN ('walsync', 'walwrite')
"""


def until_flushing(reader, answer, sessions=1):
    """Wait until so many sessions wait for a flush, of which the last has no answer yet."""
    until(lambda: answer.done() or reader.execute(FLUSHING).fetchall()[0][0] >= sessions)
    assert not answer.done(), answer


def writing(disk, write=lambda store: store.write(deposit(), COMMANDS), **settings):
    """Return a function that writes through a connection of its own, in autocommit."""
    options = " ".join(f"-c{name}={value}" for name, value in settings.items())
    address = conninfo.make_conninfo(disk.address, options=options)

    def run():
        with psycopg.connect(address, autocommit=True) as connection:
            return write(MessageStore(connection))

    return run


# Released before the flush


def test_a_write_that_waited_lets_others_go_on_before_it_is_flushed(disk, reader, later):
    """Writers of one category share a flush, and each gets its answer after it."""
    with disk.held():
        with contended(disk, reader, writers=8):
            answers = [later(writing(disk)) for _ in range(8)]
        until(lambda: version(reader) == 7)
        until_flushing(reader, answers[0], 8)
        assert not any(answer.done() for answer in answers)
    assert sorted(answer.result() for answer in answers) == list(range(8))


def test_a_session_that_waited_releases_early_for_a_while(disk, reader, later):
    """Whoever finds the lock free among writers that contend does not hold it through a flush."""
    with psycopg.connect(disk.address, autocommit=True) as connection:
        store = MessageStore(connection)
        with contended(disk, reader):
            first = later(store.write, deposit(), COMMANDS)
        assert first.result() == 0
        connection.execute(  # or a slow machine would be too late
            "SELECT set_config('reservation.early_until', "
            "(current_setting('reservation.early_until')::numeric + 60)::text, false)"
        )
        with disk.held():
            second = later(store.write, deposit("d2"), COMMANDS)
            until_flushing(reader, second)
            assert version(reader) == 1
        assert second.result() == 1


def test_a_write_without_contention_is_flushed_before_it_can_be_read(disk, reader, later):
    """A single writer commits as ever."""
    with disk.held():
        answer = later(writing(disk))
        until_flushing(reader, answer)
        assert version(reader) == -1
    assert answer.result() == 0


BATCH = [Write(deposit(f"d{n}"), f"account:command-{n}") for n in range(3)]


def test_a_batch_releases_early_too(disk, reader, later):
    """The locks of all categories of a batch are released before the flush."""
    batch = [*BATCH, Write(deposit("o"), "other:command-1")]
    with disk.held():
        with contended(disk, reader):
            answer = later(writing(disk, lambda store: store.write_batch(batch)))
        until_flushing(reader, answer)
        assert version(reader, "account:command-2") == version(reader, "other:command-1") == 0
    assert answer.result() == [0] * 4


def test_gathered_writes_release_early_too(disk, reader, later):
    """They share a statement; each answer waits for its flush."""

    async def write():
        async with await AsyncMessageStore.open(disk.address, gather=True) as store:
            writes = [store.write(deposit(f"d{n}"), COMMANDS) for n in range(3)]
            return await asyncio.gather(*writes)

    with disk.held():
        with contended(disk, reader):
            answer = later(lambda: asyncio.run(write()))
        until_flushing(reader, answer)
        assert version(reader) == 2
    assert sorted(answer.result()) == [0, 1, 2]


def test_a_sender_releases_early_too(disk, reader, later):
    """It needs no right of its own for that."""
    grants = ("store", "grants", "sender", "teller", "--category", "account:command")
    assert invoke_cli(*grants, "--database-url", disk.address).returncode == 0
    with disk.held():
        with contended(disk, reader):
            answer = later(writing(disk, role="teller"))
        until_flushing(reader, answer)
        assert version(reader) == 0
    assert answer.result() == 0


# A crash


def test_what_a_crash_takes_away_was_not_answered(disk, reader, later):
    """A message that others could see may be lost with its sender's answer, which writes again."""
    given = uuid.uuid4()
    with disk.held():
        # While this write holds up the log of changes, nothing of what follows is written to it.
        first = later(writing(disk, lambda store: store.write(deposit(), "other:command-1")))
        until_flushing(reader, first)
        with contended(disk, reader):
            lost = later(writing(disk, lambda store: store.write(deposit(), COMMANDS, id=given)))
        until(lambda: version(reader) == 0)
        # A refusal waits without the lock, and the answer to a repeated id with it.
        refused = later(writing(disk, lambda store: store.write_initial(deposit("2"), COMMANDS)))
        until_flushing(reader, refused, 3)
        again = later(writing(disk, lambda store: store.write(deposit(), COMMANDS, id=given)))
        until_flushing(reader, again, 4)
        disk.crash()
    with pytest.raises(CommitUnknownError) as caught:
        lost.result()
    assert caught.value.ids == (given,)
    for other in (again, refused):
        with pytest.raises(DatabaseUnavailableError):
            other.result()
    with psycopg.connect(disk.address, autocommit=True) as connection:
        store = MessageStore(connection)
        assert store.stream_version(COMMANDS) == -1
        assert store.write(deposit(), COMMANDS, id=given) == 0


# Off


@pytest.mark.parametrize("setting", ["local", "remote_write", "remote_apply"])
def test_a_session_with_another_setting_commits_as_it_says(disk, reader, later, setting):
    """Early release is for sessions with synchronous_commit on alone."""
    with disk.held():
        with contended(disk, reader):
            answer = later(writing(disk, synchronous_commit=setting))
        until_flushing(reader, answer)
        assert version(reader) == -1
    assert answer.result() == 0


def test_a_session_that_does_not_wait_for_flushes_does_not(disk, reader, later):
    """With synchronous_commit off nothing is added to what the caller asked for."""
    with disk.held():
        with contended(disk, reader):
            answer = later(writing(disk, synchronous_commit="off"))
        assert answer.result() == 0
        refused = writing(
            disk, lambda store: store.write_initial(deposit(), COMMANDS), synchronous_commit="off"
        )
        with pytest.raises(ExpectedVersionError):
            refused()


def test_a_transaction_of_the_caller_commits_as_it_says(disk, reader, later):
    """What the caller commits is not committed by the store."""

    def write():
        with psycopg.connect(disk.address) as connection:
            return MessageStore(connection).write(deposit(), COMMANDS)

    with disk.held():
        with contended(disk, reader):
            answer = later(write)
        until_flushing(reader, answer)
        assert version(reader) == -1
    assert answer.result() == 0


def test_where_a_standby_is_waited_for_nothing_is_seen_before_it_has_it(disk, reader, later):
    """With a synchronous standby commits are as they always were."""
    setting = "ALTER SYSTEM {} synchronous_standby_names {}"
    reader.execute(setting.format("SET", "= 'nobody'"))
    reader.execute("SELECT pg_reload_conf()")
    with psycopg.connect(disk.address, autocommit=True) as connection:
        until(lambda: connection.execute("SHOW synchronous_standby_names").fetchone()[0])
        with contended(disk, reader):
            answer = later(MessageStore(connection).write, deposit(), COMMANDS)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        until(lambda: reader.execute(waits).fetchall() == [(1,)])
        assert version(reader) == -1
        reader.execute(setting.format("RESET", ""))
        reader.execute("SELECT pg_reload_conf()")
        assert answer.result() == 0


def test_where_the_owner_may_not_flush_commits_are_as_ever(disk, reader, later):
    """A server on which the functions were taken away from everybody is written to all the same."""
    reader.execute("CREATE ROLE landlord")
    for function in reader.execute(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'pg_logical_emit_message'"
    ).fetchall():
        reader.execute(f"REVOKE EXECUTE ON FUNCTION {function[0]} FROM PUBLIC")
    for name in ("may_flush_later", "may_be_unflushed", "log_record", "flush_with_commit"):
        reader.execute(f"ALTER FUNCTION reservation.{name}() OWNER TO landlord")
    reader.execute("GRANT USAGE ON SCHEMA reservation TO landlord")
    given = uuid.uuid4()
    write = writing(disk, lambda store: store.write(deposit(), COMMANDS, id=given))
    with disk.held():
        with contended(disk, reader):
            answer = later(write)
        until_flushing(reader, answer)
        assert version(reader) == -1
    assert answer.result() == 0
    assert write() == 0
