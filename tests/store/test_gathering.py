"""Writes that tasks await at the same time go in one statement, and each has its own outcome."""

import asyncio
import random
import re
import uuid
from contextlib import asynccontextmanager, contextmanager

import psycopg
import pytest
from opentelemetry import trace
from psycopg import AsyncCursor, conninfo
from psycopg_pool import AsyncConnectionPool, AsyncNullConnectionPool

from bank.messages import Deposit
from reservation import NO_STREAM, AsyncMessageStore, MessageStore, Write
from reservation.errors import (
    CommitUnknownError,
    DatabaseUnavailableError,
    EncodeError,
    ExpectedVersionError,
    LockTimeoutError,
    MessageIdConflictError,
    MissingRightError,
    RefusedError,
    StoreError,
    StreamNameError,
)
from tests.apps.selling import COMMANDS as SALES
from tests.apps.selling import Sell
from tests.store.builders import as_login, grant, new_role  # noqa: F401  a fixture
from tests.store.clients import in_loop
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.proxy import Cut, Proxy
from tests.support.tracing import recording

PATIENCE = 60

# What one statement takes at most.
MOST_WRITES, MOST_BYTES = 500, 1_000_000


@pytest.fixture
def statements(monkeypatch):
    """Give the names of the functions that the async client called, in their order."""
    called = []

    def execute(self, query, *arguments, execute=AsyncCursor.execute, **named):
        called.extend(re.findall(rb"reservation\.(\w+)\(", query))
        return execute(self, query, *arguments, **named)

    monkeypatch.setattr(AsyncCursor, "execute", execute)
    return called


def gathering(address, **options):
    """Return a store that gathers, to be entered."""
    return _opened(AsyncMessageStore.open(address, gather=True, **options))


@asynccontextmanager
async def _opened(opening):
    async with await opening as store:
        yield store


def write(sender, *numbers):
    """Let a task write each of these deposits."""
    return [asyncio.create_task(sender.write(deposit(f"d{n}"), COMMANDS)) for n in numbers]


async def outcomes(*writes):
    """Let tasks write at the same time; return the position or the error of each."""
    tasks = asyncio.gather(*writes, return_exceptions=True)
    return await asyncio.wait_for(tasks, PATIENCE)


@asynccontextmanager
async def pooled(address, *, autocommit=True):
    """Give a pool of the caller's, of one connection, and a store on it."""
    settings = {"autocommit": autocommit, "prepare_threshold": None}
    pool = AsyncConnectionPool(address, min_size=1, max_size=1, kwargs=settings, open=False)
    async with pool:
        yield pool, AsyncMessageStore(pool, gather=True)


@contextmanager
def locked(database_url, stream_name=COMMANDS):
    """Hold the lock of a stream's category for a block."""
    with psycopg.connect(database_url) as holder:
        MessageStore(holder).lock_categories([stream_name])
        yield


BLOCKED = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'advisory'
"""


async def until_blocked(connection):
    """Wait until a write waits for the lock of a category; return its backend's id."""
    while True:
        found = connection.execute(BLOCKED).fetchall()
        if found:
            return found[0][0]
        await asyncio.sleep(0)


async def turn():
    """Let every task that can go on do so, until it waits for something outside."""
    for _ in range(10):
        await asyncio.sleep(0)


def sending():
    """Return the tasks that send statements."""
    return [task for task in asyncio.all_tasks() if task.get_name() == "gathered writes"]


def keys(store, stream_name=COMMANDS):
    """Return the deposits that a stream holds, in order."""
    return [message.decode(Deposit).deposit_id for message in store.read_stream(stream_name)]


# One statement


@in_loop
async def test_a_hundred_senders_share_a_statement(database_url, store, statements):
    """Writes awaited at the same time take one statement, and each gets its own position."""
    async with gathering(database_url) as sender:
        found = await outcomes(*write(sender, *range(100)))
    assert statements == [b"commit_each"]
    stored = keys(store)
    assert [stored[position] for position in found] == [f"d{n}" for n in range(100)]


@in_loop
async def test_nothing_is_gathered_unasked(database_url, statements):
    """A store that was not asked to gather sends a statement for each write."""
    async with await AsyncMessageStore.open(database_url) as sender:
        await outcomes(*write(sender, *range(10)))
    assert statements == [b"commit_message"] * 10


@in_loop
async def test_what_arrives_while_a_statement_is_on_its_way_goes_in_the_next(
    database_url, connection, store, statements
):
    """A write that is alone is sent at once, and those that come meanwhile go together."""
    async with gathering(database_url) as sender:
        with locked(database_url):
            (first,) = write(sender, 0)
            await until_blocked(connection)
            rest = write(sender, *range(1, 9))
            await turn()
        assert await asyncio.wait_for(asyncio.gather(first, *rest), PATIENCE) == [*range(9)]
    assert statements == [b"commit_message", b"commit_each"]


@in_loop
async def test_a_category_does_not_wait_for_another(database_url, connection):
    """A category whose lock is held keeps back no write to another one."""
    async with gathering(database_url) as sender:
        with locked(database_url):
            waits = asyncio.create_task(sender.write(deposit(), COMMANDS))
            await until_blocked(connection)
            assert await outcomes(
                *(sender.write(deposit(), f"other:command-{n}") for n in range(3))
            ) == [0, 0, 0]
            assert not waits.done()
        assert await asyncio.wait_for(waits, PATIENCE) == 0


@in_loop
async def test_a_statement_is_bounded_in_writes(database_url, store, statements):
    """More writes than a statement may hold take several, one after the other."""
    count = 2 * MOST_WRITES + 1
    async with gathering(database_url) as sender:
        found = await outcomes(*write(sender, *range(count)))
    assert found == [*range(count)]
    assert statements == [b"commit_each", b"commit_each", b"commit_message"]


@in_loop
async def test_a_statement_is_bounded_in_bytes(database_url, store, statements):
    """Long writes share a statement as far as they fit, and one that is too long goes alone."""
    lengths = [MOST_BYTES // 3, MOST_BYTES // 3, MOST_BYTES // 2, MOST_BYTES, 1, 1]
    async with gathering(database_url) as sender:
        found = await outcomes(*(sender.write(deposit("ä" * (n // 2)), COMMANDS) for n in lengths))
    assert found == [*range(6)]
    assert statements == [b"commit_each", b"commit_message", b"commit_message", b"commit_each"]


@in_loop
async def test_batches_are_not_gathered(database_url, store, statements):
    """Several messages of one call stay a statement of their own, all or none."""
    batch = [Write(deposit("b1"), COMMANDS), Write(deposit("b2"), COMMANDS)]
    refused = [Write(deposit("b3"), COMMANDS), Write(deposit("b4"), COMMANDS, None, None, 99)]
    async with gathering(database_url) as sender:
        first, second, third, position = await outcomes(
            sender.write_batch(batch),
            sender.write_batch(refused),
            sender.write([deposit("l1"), deposit("l2")], COMMANDS),
            sender.write(deposit("d1"), COMMANDS),
        )
        assert isinstance(second, ExpectedVersionError)
        stored = keys(store)
        assert stored[first[0] : first[1] + 1] == ["b1", "b2"]
        assert stored[third - 1 : third + 1] == ["l1", "l2"]
        assert (stored[position], len(stored)) == ("d1", 5)
        retried = [Write(deposit("r1"), COMMANDS, uuid.uuid4())] * 2
        assert await sender.write_batch(retried) == [5, 5]
        assert await sender.write_batch([]) == []
    assert statements.count(b"commit_messages") == 3


# Each its own outcome


@in_loop
async def test_each_sender_gets_its_own_error(database_url, connection, store, statements):
    """Refusals of some writes neither fail the others of their statement nor delay them."""
    stored, taken, twice, shared = (uuid.uuid4() for _ in range(4))
    store.write(deposit("s0"), COMMANDS, id=stored)
    store.write(deposit("s1"), COMMANDS, id=taken)
    connection.execute(
        "ALTER TABLE message_store.messages "
        "ADD CONSTRAINT small CHECK (data->>'depositId' <> 'refused')"
    )
    async with gathering(database_url) as sender:
        found = await outcomes(
            sender.write(deposit("d1"), COMMANDS),
            sender.write(deposit("s0"), COMMANDS, id=stored),  # sent again
            sender.write(deposit("other"), COMMANDS, id=taken),
            sender.write(deposit("late"), COMMANDS, expected_version=0),
            sender.write(deposit("refused"), COMMANDS),
            sender.write_initial(open_("1"), "account:command-1"),
            sender.write_initial(open_("1"), "account:command-1"),
            sender.write(deposit("t"), COMMANDS, id=twice),  # at the same time again
            sender.write(deposit("t"), COMMANDS, id=twice),
            sender.write(deposit("u"), COMMANDS, id=shared),
            sender.write(deposit("v"), COMMANDS, id=shared),
            sender.write(deposit("x"), "account"),
            sender.write(object(), COMMANDS),
            sender.write(deposit("d2"), COMMANDS),
        )
    assert found[0:2] == [2, 0]
    assert isinstance(found[2], MessageIdConflictError)
    assert str(taken) in str(found[2])
    assert isinstance(found[3], ExpectedVersionError)
    assert "expected version: 0 (Stream: account:command-123" in str(found[3])
    assert isinstance(found[4], RefusedError)
    assert "small" in str(found[4])
    assert found[5] == 0
    assert isinstance(found[6], ExpectedVersionError)
    assert found[7:10] == [3, 3, 4]
    assert isinstance(found[10], MessageIdConflictError)
    assert isinstance(found[11], StreamNameError)
    assert isinstance(found[12], EncodeError)
    assert found[13] == 5
    assert keys(store) == ["s0", "s1", "d1", "t", "u", "d2"]
    alone = [name for name in statements if name != b"flush_with_commit"]  # after a refusal
    assert alone == [b"commit_each"] + [b"commit_message"] * 5


@in_loop
async def test_what_the_server_says_of_a_statement_is_found_for_each_write(
    database_url, connection, store, statements
):
    """An error that no write can be blamed for lets each be written alone, once."""
    connection.execute(
        """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          IF NEW.data->>'depositId' = 'refused' THEN
            RAISE 'not this one' USING ERRCODE = 'UE001';
          END IF;
          RETURN NEW;
        END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON message_store.messages
          FOR EACH ROW EXECUTE FUNCTION refuse()
        """
    )
    async with gathering(database_url) as sender:
        found = await outcomes(
            *(sender.write(deposit(key), COMMANDS) for key in ("d1", "refused", "d2"))
        )
    assert isinstance(found[1], StoreError)
    assert "not this one" in str(found[1])
    assert sorted([found[0], found[2]]) == [0, 1]
    assert sorted(keys(store)) == ["d1", "d2"]
    assert statements == [b"commit_each"] + [b"commit_message"] * 3


@in_loop
async def test_a_time_limit_is_an_error_of_each_write(database_url, store):
    """A lock that is not given in time is reported to each sender by an error of its own."""
    address = conninfo.make_conninfo(database_url, options="-clock_timeout=50ms")
    async with gathering(address) as sender:
        with locked(database_url):
            found = await outcomes(*write(sender, *range(3)))
        assert [type(error) for error in found] == [LockTimeoutError] * 3
        assert len({id(error) for error in found}) == 3
        assert await sender.write(deposit("d3"), COMMANDS) == 0
    assert keys(store) == ["d3"]


@in_loop
async def test_a_refused_write_that_is_alone_takes_one_statement(database_url, store, statements):
    """A write that was sent alone gets the error of its statement."""
    async with gathering(database_url) as sender:
        with pytest.raises(ExpectedVersionError, match="Stream Version: -1"):
            await sender.write(deposit(), COMMANDS, expected_version=3)
    assert statements == [b"commit_message", b"flush_with_commit"]


@in_loop
async def test_an_encoding_is_refused_for_each(database_url, store):
    """Writes on a pool whose connections are in another encoding are refused, each of them."""
    options = {"kwargs": {"autocommit": True, "client_encoding": "LATIN1"}, "max_size": 1}
    async with AsyncConnectionPool(database_url, min_size=1, **options, open=False) as pool:
        sender = AsyncMessageStore(pool, gather=True)
        found = await outcomes(*write(sender, *range(3)))
    assert ["LATIN1" in str(error) for error in found] == [True] * 3
    assert store.stream_version(COMMANDS) == NO_STREAM


@in_loop
async def test_a_sender_writes_to_its_categories_only(
    database_url,
    connection,
    statements,
    new_role,  # noqa: F811
):
    """A role that may only send gathers too, and is refused what it may not."""
    role = new_role()
    grant(connection, "sender", role, ["account:command"])
    async with gathering(as_login(connection, database_url, role)) as sender:
        streams = [*[COMMANDS] * 3, "account-1", "account-2"]
        found = await outcomes(*(sender.write(deposit(), stream) for stream in streams))
    assert found[:3] == [0, 1, 2]
    assert [type(error) for error in found[3:]] == [MissingRightError] * 2
    assert statements.count(b"commit_each") == 2


@in_loop
async def test_whatever_is_written_at_one_time_ends_as_if_written_in_some_order(
    database_url, connection, store
):
    """Of many senders with expected versions and repeated ids none gets what is not in the log."""
    chance = random.Random(7)
    ids = [uuid.uuid4() for _ in range(60)]
    streams = [f"account:command-{n}" for n in range(4)]
    async with gathering(database_url) as sender:

        async def send(n):
            drawn = chance.randrange(len(ids))
            stream, version = streams[drawn % 4], chance.choice([None, None, -1, 0, n // 4])
            key = f"d{drawn}-{chance.randrange(2)}"
            given = ids[drawn] if chance.random() < 0.5 else uuid.uuid4()
            try:
                position = await sender.write(
                    deposit(key), stream, id=given, expected_version=version
                )
            except (ExpectedVersionError, MessageIdConflictError) as error:
                return type(error), stream, given, key
            return position, stream, given, key

        found = await outcomes(*(send(n) for n in range(300)))
    log = {m.id: m for m in store.read_category("account:command")}
    assert {type(outcome) for outcome in found} == {tuple}
    positions = 0
    for outcome, stream, given, key in found:
        stored = log.get(str(given))
        if outcome is MessageIdConflictError:
            assert stored.decode(Deposit).deposit_id != key
        elif outcome is not ExpectedVersionError:
            positions += 1
            assert (stored.stream_name, stored.position) == (stream, outcome)
            assert stored.decode(Deposit).deposit_id == key
    assert set(log) == {str(given) for outcome, _, given, _ in found if isinstance(outcome, int)}
    assert positions > len(log)  # some were there already


# Cancelled senders


@pytest.mark.parametrize(
    ("sent", "waiting", "cancelled", "stored"),
    [
        pytest.param([0], [1, 2, 3], [2], [0, 1, 3], id="before it is sent"),
        pytest.param([0, 1, 2], [3], [0], [0, 1, 2, 3], id="when it may be written"),
        pytest.param([0, 1, 2], [3], [0, 1, 2], [3], id="all of a statement, which ends"),
    ],
)
@in_loop
async def test_senders_that_are_cancelled_harm_nobody(
    database_url, connection, store, sent, waiting, cancelled, stored
):
    """What was not sent is not written, and a statement ends when all its senders are cancelled."""
    async with gathering(database_url) as sender:
        with locked(database_url):
            tasks = write(sender, *sent)
            pid = await until_blocked(connection)
            tasks += write(sender, *waiting)
            await turn()
            for n in cancelled:
                tasks[n].cancel()
            found = await outcomes(*(tasks[n] for n in cancelled))
            assert {type(error) for error in found} == {asyncio.CancelledError}
            while sent == cancelled and (pid,) in connection.execute(BLOCKED).fetchall():
                await asyncio.sleep(0)
        others = [n for n in range(4) if n not in cancelled]
        assert await outcomes(*(tasks[n] for n in others)) == [stored.index(n) for n in others]
    assert keys(store) == [f"d{n}" for n in stored]


@in_loop
async def test_a_statement_is_canceled_once(database_url, connection, store, monkeypatch):
    """A request to cancel that is under way reaches the server when the senders are cancelled."""

    async def cancel_safe(self, cancel=psycopg.AsyncConnection.cancel_safe, **named):
        await turn()  # as over a slow network
        await cancel(self, **named)

    monkeypatch.setattr(psycopg.AsyncConnection, "cancel_safe", cancel_safe)
    async with gathering(database_url) as sender:
        with locked(database_url):
            tasks = write(sender, 0, 1, 2)
            await until_blocked(connection)
            (statement,) = sending()
            statement.cancel()
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            while connection.execute(BLOCKED).fetchall():
                await asyncio.sleep(0)
            await outcomes(statement, *tasks)
    assert store.stream_version(COMMANDS) == NO_STREAM


@in_loop
async def test_senders_that_are_cancelled_while_there_is_no_connection(
    database_url, store, statements
):
    """Senders that are all cancelled while the pool is exhausted no longer wait for it."""
    async with pooled(database_url) as (pool, sender):
        async with pool.connection():
            tasks = write(sender, 0, 1, 2)
            await turn()
            assert len(sending()) == 1
            for task in tasks:
                task.cancel()
            await outcomes(*tasks)
            await turn()
            assert sending() == []
            (last,) = write(sender, 3)
            await turn()
        assert await asyncio.wait_for(last, PATIENCE) == 0
    assert statements == [b"commit_message"]
    assert keys(store) == ["d3"]


@in_loop
async def test_senders_that_are_cancelled_when_there_is_a_connection(
    database_url, store, statements
):
    """Senders that are cancelled just when the pool gives a connection write nothing."""
    async with pooled(database_url) as (pool, sender):
        async with pool.connection():
            tasks = write(sender, 0, 1, 2)
            await turn()
        for task in tasks:
            task.cancel()
        found = await outcomes(*tasks)
        assert [type(error) for error in found] == [asyncio.CancelledError] * 3
        assert await sender.write(deposit("d3"), COMMANDS) == 0
    assert statements == [b"commit_message"]
    assert keys(store) == ["d3"]


@in_loop
async def test_a_connection_that_hangs_keeps_nobody_waiting_who_was_not_sent(
    database_url, store, monkeypatch
):
    """Once its senders are cancelled, a statement that does not end keeps back no other write."""
    hangs, ends = asyncio.Event(), asyncio.Event()

    async def wait(self, *arguments, wait=psycopg.AsyncConnection.wait, **named):
        # The pool may be connecting once more meanwhile, which is none of the statements.
        if hangs.is_set() or asyncio.current_task() not in sending():
            return await wait(self, *arguments, **named)
        hangs.set()
        try:
            await ends.wait()
        finally:  # as after a cancellation of which the server does not hear
            await ends.wait()

    async with gathering(database_url, max_connections=2) as sender:
        assert not [message async for message in sender.read_stream(COMMANDS)]  # it is connected
        monkeypatch.setattr(psycopg.AsyncConnection, "wait", wait)
        tasks = write(sender, 0, 1, 2)
        await asyncio.wait_for(hangs.wait(), PATIENCE)
        (last,) = write(sender, 3)
        await turn()
        for task in tasks:
            task.cancel()
        assert await asyncio.wait_for(last, PATIENCE) == 0
        ends.set()
        await outcomes(*tasks)
    assert keys(store) == ["d3"]


@in_loop
async def test_a_statement_that_is_cancelled_from_outside(database_url, connection, store):
    """Senders whose statement's task is cancelled cannot know; those that wait are written."""
    async with gathering(database_url) as sender:
        with locked(database_url):
            tasks = [
                asyncio.create_task(sender.write(deposit(f"d{n}"), COMMANDS, id=uuid.uuid4()))
                for n in range(2)
            ]
            await until_blocked(connection)
            (last,) = write(sender, 2)
            await turn()
            (statement,) = sending()
            statement.cancel()
            found = await outcomes(*tasks)
        assert [type(error) for error in found] == [CommitUnknownError] * 2
        assert await asyncio.wait_for(last, PATIENCE) == 0
        for n, error in enumerate(found):
            (again,) = error.ids
            assert await sender.write(deposit(f"d{n}"), COMMANDS, id=again) == n + 1
    assert keys(store) == ["d2", "d0", "d1"]


def test_an_event_loop_that_ends_leaves_nothing_behind(database_url, connection, store):
    """A loop can end while writes are on their way and others wait; none of them is written."""

    async def leave():
        sender = await AsyncMessageStore.open(database_url, gather=True)
        tasks = write(sender, 0)
        await until_blocked(connection)
        tasks += write(sender, 1)
        await turn()
        await sender.close()
        return tasks

    with locked(database_url):
        tasks = asyncio.run(leave())
        while connection.execute(BLOCKED).fetchall():  # until the server has seen it
            pass
    assert [task.cancelled() for task in tasks] == [True, True]
    assert store.stream_version(COMMANDS) == NO_STREAM


def test_a_task_is_answered_by_its_own_event_loop(database_url, connection):
    """A loop that stands still keeps back no write of another loop that uses the store."""
    one, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    pool = AsyncNullConnectionPool(database_url, kwargs={"autocommit": True}, open=False)
    sender = AsyncMessageStore(pool, gather=True)
    one.run_until_complete(pool.open())
    with locked(database_url):
        stands = one.create_task(sender.write(deposit("d0"), COMMANDS))
        one.run_until_complete(until_blocked(connection))
    writing = asyncio.wait_for(sender.write(deposit("d1"), COMMANDS), PATIENCE)
    found = other.run_until_complete(writing), one.run_until_complete(stands)
    assert sorted(found) == [0, 1]
    one.run_until_complete(pool.close())
    one.close()
    other.close()


# Lost connections


@pytest.fixture
def proxy(database_url):
    """Give a proxy before the test's database."""
    with Proxy(database_url) as between:
        yield between


@in_loop
async def test_a_backend_that_is_killed_with_a_statement(database_url, connection, store):
    """Each sender of a killed statement gets an error with its own id; later writes go on."""
    ids = [uuid.uuid4() for _ in range(3)]
    async with gathering(database_url) as sender:
        with locked(database_url):
            tasks = [
                asyncio.create_task(sender.write(deposit(f"d{n}"), COMMANDS, id=given))
                for n, given in enumerate(ids)
            ]
            pid = await until_blocked(connection)
            (last,) = write(sender, 3)
            await turn()
            connection.execute("SELECT pg_terminate_backend(%s)", [pid])
            found = await outcomes(*tasks)
        assert [type(error) for error in found] == [CommitUnknownError] * 3
        assert [error.ids for error in found] == [(given,) for given in ids]
        assert len({id(error) for error in found}) == 3
        assert await asyncio.wait_for(last, PATIENCE) == 0
        again = (sender.write(deposit(f"d{n}"), COMMANDS, id=given) for n, given in enumerate(ids))
        assert await outcomes(*again) == [1, 2, 3]
    assert keys(store) == ["d3", "d0", "d1", "d2"]


@pytest.mark.parametrize("when", Cut)
@in_loop
async def test_a_lost_answer_is_reported_to_each_with_its_own_ids(proxy, store, when):
    """Whether the statement arrived or not, each sender writes again with its id, harmlessly."""
    async with gathering(proxy.address) as sender:
        proxy.cut(when, "reservation.commit_each")
        found = await outcomes(*write(sender, *range(5)))
        assert proxy.happened.is_set()
        assert [type(error) for error in found] == [CommitUnknownError] * 5
        assert len(keys(store)) == (0 if when is Cut.BEFORE else 5)
        assert found[0].__cause__ is not None
        again = (
            sender.write(deposit(f"d{n}"), COMMANDS, id=error.ids[0])
            for n, error in enumerate(found)
        )
        assert await outcomes(*again) == [*range(5)]
    assert keys(store) == [f"d{n}" for n in range(5)]


@in_loop
async def test_a_pool_that_commits_is_unknown_at_its_commit_only(proxy, store):
    """Not in autocommit, a lost statement has written nothing, and a lost commit may have."""
    async with pooled(proxy.address, autocommit=False) as (_, sender):
        for cut, statement, kind in (
            (Cut.AFTER, "reservation.write_each", DatabaseUnavailableError),
            (Cut.AFTER, "COMMIT", CommitUnknownError),
        ):
            proxy.cut(cut, statement)
            found = await outcomes(*write(sender, *range(3)))
            assert [type(error) for error in found] == [kind] * 3
        assert await sender.write(deposit("d3"), COMMANDS) == 3
    assert keys(store) == ["d0", "d1", "d2", "d3"]


@in_loop
async def test_a_pool_that_gives_no_connection(database_url, store):
    """Senders that wait for a connection each get an error, and those that came later wait on."""
    async with pooled(database_url, autocommit=False) as (pool, sender):
        async with pool.connection():
            pool.timeout = 0.01
            first = write(sender, 0, 1, 2)
            await turn()
            pool.timeout = PATIENCE
            (later,) = write(sender, 3)
            found = await outcomes(*first)
            assert [type(error) for error in found] == [DatabaseUnavailableError] * 3
            assert len({id(error) for error in found}) == 3
            await turn()
            assert not later.done()
        assert await asyncio.wait_for(later, PATIENCE) == 0
    assert keys(store) == ["d3"]


@in_loop
async def test_a_store_that_is_closed_while_writes_wait(database_url, connection, store):
    """Closing lets a statement that is on its way end, and refuses what was not sent."""
    async with gathering(database_url) as sender:
        with locked(database_url):
            (sent,) = write(sender, 0)
            await until_blocked(connection)
            waits = write(sender, 1, 2, 3)
            await turn()
            await sender.close()
        found = await outcomes(sent, *waits)
        assert found[0] == 0
        assert [type(error) for error in found[1:]] == [DatabaseUnavailableError] * 3
        with pytest.raises(DatabaseUnavailableError, match="closed"):
            await sender.write(deposit("d4"), COMMANDS)
    assert keys(store) == ["d0"]


# What it is bound to


@in_loop
async def test_a_connection_of_the_callers_does_not_gather(database_url):
    """Writes in a transaction of the caller's cannot be gathered, which is said at once."""
    async with await psycopg.AsyncConnection.connect(database_url) as own:
        with pytest.raises(StoreError, match="leave gather out"):
            AsyncMessageStore(own, gather=True)


def test_each_sender_keeps_its_own_trace(database_url, store, monkeypatch):
    """Messages of one statement carry their senders' contexts, and it is part of no one's trace."""
    in_a_span = []

    def execute(self, *arguments, execute=AsyncCursor.execute, **named):
        if b"reservation." in bytes(arguments[0]):  # not what a new connection is prepared with
            in_a_span.append(trace.get_current_span().get_span_context().is_valid)
        return execute(self, *arguments, **named)

    monkeypatch.setattr(AsyncCursor, "execute", execute)

    async def send(sender, tracer, number):
        with tracer.start_as_current_span(f"request {number}"):
            await sender.write(Sell("1", f"{number}"), f"{SALES}-{number}")

    async def run(tracer):
        async with gathering(database_url) as sender:
            await asyncio.gather(*(send(sender, tracer, n) for n in range(5)))

    with recording() as spans:
        asyncio.run(run(spans.tracer))
    assert in_a_span == [False]
    for number in range(5):
        (request,) = spans.named(f"request {number}")
        (sent,) = [span for span in spans.all() if span.parent == request.id]
        (message,) = store.read_stream(f"{SALES}-{number}")
        _, trace_id, span_id, _ = message.metadata.properties["traceparent"].split("-")
        assert (trace_id, span_id) == (request.trace, sent.id)
