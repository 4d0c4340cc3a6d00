"""`context.connected()`: a connection of an async handler's own, committed before the message."""

import asyncio
import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import AsyncRawCursor, AsyncRawServerCursor, IsolationLevel
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader
from psycopg_pool import AsyncConnectionPool

import consumers
from consumers.runtime import handler_connections
from reservation import AsyncMessageStore, Component, Context, Reject, Retry, Write
from reservation.errors import HandlerError
from reservation.strategies import StateBased
from reservation.testing import given
from tests.apps.bank import drain
from tests.consumers.builders import stored_letter, stored_letters
from tests.consumers.test_sqlalchemy_session import raising
from tests.support.awaiting import impatient
from tests.support.consuming import logged, running, until
from tests.support.pages import ROOT
from tests.support.pgbouncer import needs_pgbouncer, pgbouncer

COMMANDS = "job:command"


@dataclass(frozen=True)
class Do:
    job_id: str


@dataclass(frozen=True)
class Done:
    job_id: str


@dataclass
class Progress:
    done: int = 0


@pytest.fixture(autouse=True)
def _table(connection):
    connection.execute("CREATE TABLE jobs (id text PRIMARY KEY, calls int NOT NULL DEFAULT 1)")


@pytest.fixture(params=["patient", "impatient"], name="patience")
def _patience(request, monkeypatch):
    """Let batches wait for their calls, or for none."""
    if request.param == "impatient":
        impatient(monkeypatch)


def job_with(act, **options):
    """Return a component with an async handler that does something, and returns an event."""
    job = Component("job", entity=Progress, id="job_id", attempts=1)
    job.message(Done)

    @job.handle(Do, **{"once": None} | options)
    async def do(command, entity, context):
        context.write(Done(command.job_id), f"further-{command.job_id}")
        await act(command, context)
        return Done(command.job_id)

    return job


def send(store, *names):
    """Send commands, each to an entity of its own."""
    store.write_batch([Write(Do(name), f"{COMMANDS}-{name}") for name in names])


def jobs(connection):
    return [row[0] for row in connection.execute("SELECT id FROM jobs ORDER BY id")]


def done(store):
    """Return the names of what was done, and those of the further messages."""
    return tuple(
        sorted(message.decode(Done).job_id for message in store.read_category(name))
        for name in ("job", "further")
    )


async def insert(connection, name):
    await connection.execute("INSERT INTO jobs VALUES (%s)", [name])


def test_its_transaction_is_committed_when_the_block_ends(connection, store, patience):
    """What the block did is there while the handler goes on, and others do not see it before."""
    seen = []

    async def act(command, context):
        async with context.connected() as own:
            await insert(own, command.job_id)
            await AsyncMessageStore(own).write(Done("x"), f"other-{command.job_id}")
            seen.append(command.job_id in jobs(connection))
        seen.append(command.job_id in jobs(connection))
        if command.job_id == "b":
            raise ValueError

    send(store, *"abc")
    assert drain(connection, job_with(act)).counts == {"handled": 2, "dead": 1}
    assert sorted(seen) == [False] * 3 + [True] * 3
    assert (jobs(connection), done(store)) == ([*"abc"], ([*"ac"], [*"ac"]))
    assert len(list(store.read_category("other"))) == 3


def test_an_exception_rolls_it_back(connection, store):
    """A block that raises leaves nothing; a handler may catch that, and reject or go on."""

    async def act(command, context):
        with raising(KeyError):
            async with context.connected() as own:
                await insert(own, "lost")
                raise KeyError
        async with context.connected() as own:
            await insert(own, command.job_id)
        if command.job_id == "b":
            async with context.connected() as own:
                await insert(own, "lost too")
                raise Reject("no")

    send(store, *"ab")
    assert drain(connection, job_with(act)).counts == {"handled": 1, "rejected": 1}
    assert jobs(connection) == [*"ab"]


KILLED = """
import asyncio, os, signal, sys
import consumers
from tests.consumers.test_connected import counted, job_with

async def act(command, context):
    await counted(command, context)
    os.kill(os.getpid(), signal.SIGKILL)

consumers.drain(job_with(act), sys.argv[1])
"""


async def counted(command, context):
    """Insert a row under the message's id, or count that it is there."""
    async with context.connected() as own:
        await own.execute(
            "INSERT INTO jobs VALUES (%s) ON CONFLICT (id) DO UPDATE SET calls = jobs.calls + 1",
            [str(context.id())],
        )


def test_after_a_crash_the_handler_is_called_again_with_the_same_id(
    connection, store, database_url
):
    """The row of the call that was killed is there, and found by the second one."""
    send(store, "a")
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, database_url], env={**os.environ, "PYTHONPATH": path}
    )
    assert killed.returncode == -9
    assert (len(jobs(connection)), done(store)) == (1, ([], []))
    assert drain(connection, job_with(counted)).counts == {"handled": 1}
    assert connection.execute("SELECT calls FROM jobs").fetchall() == [(2,)]
    assert done(store) == (["a"], ["a"])


def test_it_is_bounded_and_closed_with_the_consumer(connection, store):
    """At most ten are open, however many calls run; afterwards there are none."""
    name = "'reservation job handlers'"
    open_ = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = {name}"
    most = []

    async def act(command, context):
        async with context.connected() as own:
            await insert(own, command.job_id)
            most.append((await (await own.execute(open_)).fetchone())[0])

    names = [f"{n:02}" for n in range(30)]
    send(store, *names)
    with logged() as log:
        assert drain(connection, job_with(act, concurrency=30)).counts == {"handled": 30}
    assert log.named("call_repeated") == []
    assert jobs(connection) == names
    assert max(most) <= 10
    until(lambda: connection.execute(open_).fetchone() == (0,))


@pytest.fixture(params=["server", pytest.param("pooler", marks=needs_pgbouncer)], name="address")
def _address(request, database_url, tmp_path):
    """Give the address of the server, or of a pooler whose sessions begin with another encoding."""
    if request.param == "server":
        yield database_url
        return
    with pgbouncer(database_url, tmp_path, "session", client_encoding="LATIN1") as address:
        yield address


async def attributes(own):
    """Return what a block can change of its connection, and what its statements find."""
    names = ("row_factory", "cursor_factory", "server_cursor_factory", "autocommit", "read_only")
    more = ("isolation_level", "deferrable", "prepare_threshold", "prepared_max")
    settings = ("search_path", "role", "lock_timeout", "client_encoding", "synchronous_commit")
    shown = ", ".join(f"current_setting('{name}') AS {name}" for name in settings)
    cursor = own.cursor(row_factory=dict_row)
    await cursor.execute(f"SELECT {shown}, now(), pg_backend_pid() AS pid")
    row = await cursor.fetchone()
    locks = await own.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
    row["now"] = type(row["now"])
    return *(getattr(own, name) for name in (*names, *more)), row, await locks.fetchone()


async def change(own, noticed):
    """Change all of it."""
    await own.rollback()
    await own.set_read_only(True)
    await own.set_deferrable(True)
    await own.set_isolation_level(IsolationLevel.SERIALIZABLE)
    await own.set_autocommit(True)
    await own.execute("SET search_path = pg_catalog; SET lock_timeout = '1h'; SET ROLE pg_monitor")
    await own.execute("SET client_encoding = 'LATIN1'; SELECT pg_advisory_lock(1); LISTEN jobs")
    own.adapters.register_loader("timestamptz", TextLoader)
    own.row_factory, own.cursor_factory = dict_row, AsyncRawCursor
    own.server_cursor_factory = AsyncRawServerCursor
    own.prepare_threshold, own.prepared_max = 0, 1
    own.add_notice_handler(noticed.append)
    await own.execute("SELECT $1::int", [1])


def test_a_block_leaves_nothing_to_the_next_one_on_its_connection(
    connection, store, address, monkeypatch
):
    """Attributes, adapters, settings, locks and the transaction are as they were."""
    monkeypatch.setattr(handler_connections, "MOST", 1)
    found, noticed = [], []

    async def act(command, context):
        with contextlib.suppress(KeyError):
            async with context.connected() as own:
                found.append(await attributes(own))
                if command.job_id == "a":
                    await change(own, noticed)
                    assert await attributes(own) != found[0]
                else:
                    await own.execute("DO $$ BEGIN RAISE NOTICE 'x'; END $$")
                    await insert(own, "lost")
                    raise KeyError

    send(store, *"ab")
    drained = consumers.drain(job_with(act, concurrency=1), address)
    assert (drained.counts, jobs(connection), noticed) == ({"handled": 2}, [], [])
    before, after = found
    assert before == after


def test_a_cancelled_call_rolls_back(connection, store, database_url):
    """A call that is cancelled at a stop leaves nothing in its block, and is made again."""
    calls = []

    async def act(command, context):
        calls.append(command)
        async with context.connected() as own:
            await insert(own, command.job_id)
            if len(calls) == 1:
                await asyncio.Event().wait()

    send(store, "a")
    component = job_with(act)
    with running(component, database_url, COMMANDS, grace=0.2) as (thread, _):
        until(lambda: calls, thread)
    assert (jobs(connection), done(store)) == ([], ([], []))
    assert drain(connection, component).counts == {"handled": 1}
    assert (jobs(connection), done(store)) == (["a"], (["a"], ["a"]))


# Faults of the environment


def loses_a_race(own):
    return own.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")


def loses_its_connection(own):
    return own.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@pytest.mark.parametrize("meets", [loses_a_race, loses_its_connection])
@pytest.mark.parametrize("wraps", [False, True], ids=["raised", "as a cause"])
def test_a_fault_of_the_environment_calls_the_handler_again(
    connection, store, patience, meets, wraps
):
    """Nothing is counted, nothing is written twice, and other calls are not repeated."""
    calls = []

    async def act(command, context):
        calls.append(command.job_id)
        try:
            async with context.connected() as own:
                await insert(own, command.job_id)
                if calls.count("b") == 1 and command.job_id == "b":
                    await meets(own)
        except psycopg.Error as error:
            if wraps:
                raise KeyError from error
            raise

    send(store, *"abc")
    with logged() as log:
        assert drain(connection, job_with(act)).counts == {"handled": 3}
    assert sorted(calls) == [*"abbc"]
    assert (jobs(connection), done(store)) == ([*"abc"], ([*"abc"], [*"abc"]))
    assert {one.reason for one in stored_letters(connection)} <= {"running"}
    (event,) = log.named("call_repeated")
    assert (event["type"], event["stream_name"]) == ("Do", "job:command-b")


def test_a_loss_that_the_handler_ignores_calls_it_again(connection, store, patience):
    """The rows of a session that has ended are never taken for committed."""
    calls = []

    async def act(command, context):
        calls.append(command.job_id)
        async with context.connected() as own:
            await insert(own, command.job_id)
            if calls == ["a"]:
                with raising(psycopg.OperationalError):
                    await loses_its_connection(own)

    send(store, "a")
    with logged() as log:
        assert drain(connection, job_with(act)).counts == {"handled": 1}
    assert (calls, jobs(connection), done(store)) == ([*"aa"], ["a"], (["a"], ["a"]))
    (event,) = log.named("call_repeated")
    assert event["error"].startswith("OperationalError in ")  # not that which was ignored


def test_a_race_that_the_commit_loses_calls_the_handler_again(connection, store):
    """A deferred trigger that loses a race is no failure; the next call is."""
    connection.execute(
        "CREATE SEQUENCE attempts; CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF nextval('attempts') = 1 THEN RAISE SQLSTATE '40001'; END IF; RETURN NULL; END "
        "$$; CREATE CONSTRAINT TRIGGER late AFTER INSERT ON jobs DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION late()"
    )

    async def act(command, context):
        async with context.connected() as own:
            await insert(own, command.job_id)

    send(store, "a")
    assert drain(connection, job_with(act)).counts == {"handled": 1}
    assert (jobs(connection), done(store)) == (["a"], (["a"], ["a"]))


def test_a_handler_that_ends_its_session_each_time_fails(connection, store):
    """Five losses in a row are the message's failure."""
    calls = []

    async def act(command, context):
        calls.append(command)
        async with context.connected() as own:
            await loses_its_connection(own)

    send(store, "a")
    assert drain(connection, job_with(act)).counts == {"dead": 1}
    assert len(calls) == 5
    assert "raised AdminShutdown" in stored_letter(connection).error


# What is refused


def test_a_handler_that_is_not_async_has_none(connection, store):
    """It gets one line, as does an async one of a context without a pool."""
    job = Component("job", entity=Progress, id="job_id", attempts=1)
    errors = []

    def handle(command, entity, context):
        with pytest.raises(HandlerError) as raised:
            context.connected()
        errors.append(str(raised.value))

    job.handle(Do, once=None)(handle)
    send(store, "a")
    drain(connection, job)
    given(job_with(nothing), "a").when(Do("a"))
    (error,) = errors
    assert error == (
        "There is no connection of its own for Do at job:command-a, global position 1: "
        "context.connected() is for handlers with async def, others have context.connection; in a "
        "test, make the context with Context(message, connect=pool.connection)"
    )


async def nothing(command, context):
    with pytest.raises(HandlerError, match="connect=pool"):
        context.connected()


async def nests(command, context):
    async with context.connected() as own:
        await insert(own, "x")
        async with context.connected():
            pass


async def swallows(command, context):
    async with context.connected() as own:
        await insert(own, "x")
        with pytest.raises(psycopg.Error):
            await own.execute("SELECT 1/0")


async def closes(command, context):
    async with context.connected() as own:
        await insert(own, "x")
        await own.close()


REFUSED = {
    closes: "closed the connection of context.connected(), so nothing of the block can be "
    "committed; leave close() out",
    nests: "is in a block of context.connected() already; use the connection of that, or end it "
    "first",
    swallows: "went on after a statement that failed, so nothing of the block can be committed; "
    "execute what may fail in `async with connection.transaction():`",
}


@pytest.mark.parametrize("act", REFUSED)
def test_what_is_refused_names_the_way_out(connection, store, act):
    """Nothing of the block is committed."""
    send(store, "a")
    assert drain(connection, job_with(act)).counts == {"dead": 1}
    error = f"The handler of Do at job:command-a, global position 1 {REFUSED[act]}"
    assert (stored_letter(connection).error, jobs(connection)) == (error, [])


def test_handlers_on_a_state_have_one_too(connection, store):
    """An async handler of `StateBased` may use it; a redelivery finds its row."""
    send(store, "a")
    component = job_with(counted, once=StateBased())
    assert drain(connection, component).counts == {"handled": 1}
    assert len(jobs(connection)) == 1


def test_a_policy_repeats_what_the_handler_raises(connection, store):
    """An error that is the handler's own is an attempt, with what it did committed before."""
    calls = []

    async def act(command, context):
        await counted(command, context)
        calls.append(command)
        if len(calls) == 1:
            raise ValueError

    send(store, "a")
    component = job_with(act, retry=Retry(attempts=3, first="1ms"))
    assert drain(connection, component).counts == {"handled": 1}
    assert connection.execute("SELECT calls FROM jobs").fetchall() == [(2,)]


def test_in_a_test_a_pool_serves(connection, store, database_url):
    """A context that is made with a pool's `connection` gives its connections."""
    send(store, "a")
    (message,) = store.read_category(COMMANDS)

    async def run():
        async with AsyncConnectionPool(database_url, min_size=1, open=False) as pool:
            await counted(Do("a"), Context(message, connect=pool.connection))

    asyncio.run(run())
    assert len(jobs(connection)) == 1
