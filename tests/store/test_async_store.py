"""The sync and the async client do the same, and the async one behaves in an event loop."""

import asyncio
import inspect
import itertools
import uuid
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from psycopg import AsyncCursor, Cursor
from psycopg.pq import TransactionStatus

from reservation import NO_STREAM, AsyncMessageStore, MessageStore, Metadata, Write
from reservation.errors import (
    DatabaseUnavailableError,
    EncodeError,
    ExpectedVersionError,
    MessageIdConflictError,
    StoreError,
    StreamNameError,
)
from tests.store.clients import CLIENTS, in_loop
from tests.support.controls import COMMANDS, deposit, open_, withdraw

both = pytest.mark.parametrize("client", CLIENTS)

# What only consumers and Django use, which are not asynchronous.
ONLY_SYNC = {
    "django",
    "stored_ids",
    "lock_categories",
    "write_encoded",
    "schedule_encoded",
}


def public(class_):
    """Return the public methods of a class by their names, and those of `async with` or `with`."""
    return {
        name: value
        for name, value in vars(class_).items()
        if callable(getattr(class_, name)) and not name.startswith("_")
    }


def without_gather(signature):
    """Return a signature without the argument that is for tasks of an event loop alone."""
    others = [p for p in signature.parameters.values() if p.name != "gather"]
    return signature.replace(parameters=others)


def test_both_clients_have_the_same_methods():
    """Both clients have the same methods with the same arguments, defaults and results."""
    sync, other = public(MessageStore), public(AsyncMessageStore)
    assert set(sync) - set(other) == ONLY_SYNC
    assert set(other) <= set(sync)
    for name in other:
        ours, theirs = (
            inspect.signature(getattr(c, name)) for c in (MessageStore, AsyncMessageStore)
        )
        theirs = without_gather(theirs)
        assert ours.parameters == theirs.parameters, name
        result = ours.return_annotation
        if getattr(result, "__origin__", None) is Iterator:
            result = AsyncIterator[result.__args__]
        assert result == theirs.return_annotation, name
    ours, theirs = (inspect.signature(c) for c in (MessageStore, AsyncMessageStore))
    assert [*ours.parameters] == [*without_gather(theirs).parameters]


async def every(messages):
    """Return all that an iterator gives."""
    return [message async for message in messages]


@both
@in_loop
async def test_every_method_answers_the_same(client, database_url):
    """Both clients give the same answers in each kind of write, refusal and read."""
    given, metadata = uuid.uuid4(), Metadata(correlation_stream_name="transfer-1")
    async with await client.open(database_url, max_connections=1, max_bytes=1000) as store:
        assert await store.write(deposit("d1"), COMMANDS, id=given, metadata=metadata) == 0
        assert await store.write(deposit("d1"), COMMANDS, id=given, metadata=metadata) == 0
        assert await store.write([deposit("d2"), deposit("d3")], COMMANDS, expected_version=0) == 2
        assert await store.write_initial(open_("9"), "account:command-9") == 0
        batch = [Write(withdraw(), "account:command-9"), Write(deposit("d4"), COMMANDS)]
        assert await store.write_batch(batch) == [1, 3]
        assert await store.write_batch(iter(batch[:0])) == []
        with pytest.raises(ExpectedVersionError, match="Stream Version: 3"):
            await store.write_initial(deposit(), COMMANDS)
        with pytest.raises(MessageIdConflictError, match=str(given)):
            await store.write(deposit("d9"), COMMANDS, id=given)
        with pytest.raises(StreamNameError):
            await store.write(deposit(), "account")
        with pytest.raises(EncodeError, match="at most 1000 bytes"):
            await store.write(deposit("d" * 1000), COMMANDS)
        assert await store.stream_version(COMMANDS) == 3
        assert await store.stream_version("account:command-0") == NO_STREAM

        stream = await every(store.read_stream(COMMANDS, position=1, batch_size=2))
        assert [m.position for m in stream] == [1, 2, 3]
        category = await every(store.read_category("account:command", batch_size=4))
        assert [m.stream_name[-1] for m in category] == ["3", "3", "3", "9", "9", "3"]
        (correlated,) = await every(store.read_category("account:command", correlation="transfer"))
        assert (correlated.id, correlated.metadata) == (str(given), metadata)
        members = [
            await every(
                store.read_category(
                    "account:command", consumer_group_member=n, consumer_group_size=2
                )
            )
            for n in range(2)
        ]
        assert sorted(m.global_position for part in members for m in part) == [
            m.global_position for m in category
        ]
        many = await store.read_streams({"account:command-9": 1, COMMANDS: 3})
        assert [(m.type, m.position) for m in many] == [("Withdraw", 1), ("Deposit", 3)]
        assert await store.read_streams({}) == []
        assert (await store.last_message(COMMANDS)).position == 3
        assert (await store.last_message("account:command-9", "Open")).position == 0
        assert await store.last_message("account:command-0") is None
        with pytest.raises(StreamNameError):
            store.read_category(COMMANDS)
        with pytest.raises(StoreError, match="read one or more"):
            store.read_stream(COMMANDS, batch_size=0)
    with pytest.raises(DatabaseUnavailableError, match="closed"):
        await store.stream_version(COMMANDS)


@both
@in_loop
async def test_messages_are_written_with_the_callers_rows_or_not_at_all(
    client, database_url, connection, store
):
    """The caller commits or rolls back messages with its own rows; its connection stays open."""
    connection.execute("CREATE TABLE receipts (deposit_id text)")

    def seen():
        rows = connection.execute("SELECT count(*) FROM receipts").fetchone()
        return rows[0], store.stream_version(COMMANDS)

    async with await client.connect(database_url) as own:
        async with client.on(own) as sender:
            for end, expected in ((own.rollback, (0, NO_STREAM)), (own.commit, (1, 0))):
                await own.execute("INSERT INTO receipts VALUES ('d1')")
                assert await sender.write(deposit(), COMMANDS) == 0
                assert [m.position async for m in sender.read_stream(COMMANDS)] == [0]
                assert seen() == (0, NO_STREAM)
                await end()
                assert seen() == expected
        assert not own.closed
        async with own.transaction():
            await own.execute("INSERT INTO receipts VALUES ('d2')")
            await sender.write(deposit("d2"), COMMANDS)
            raise psycopg.Rollback
        assert seen() == (1, 0)


@both
@in_loop
async def test_an_iterator_holds_one_batch_and_no_connection(
    client, database_url, store, monkeypatch
):
    """Between two messages an iterator holds no connection and has not asked for the next batch."""
    asked = []
    for kind in (Cursor, AsyncCursor):

        def count(self, query, *arguments, execute=kind.execute, **named):
            asked.append(query)
            return execute(self, query, *arguments, **named)

        monkeypatch.setattr(kind, "execute", count)
    store.write([deposit(f"d{n}") for n in range(7)], COMMANDS)
    async with await client.open(database_url, max_connections=1) as reader:
        await reader.stream_version(COMMANDS)  # the pool has made its connection ready
        for read in (
            lambda: reader.read_stream(COMMANDS, batch_size=3),
            lambda: reader.read_category("account:command", batch_size=3),
        ):
            last = store.stream_version(COMMANDS)
            asked.clear()
            seen = []
            async for message in read():
                seen.append(message.position)
                if message.position == 1:
                    assert len(asked) == 1
                    last = await reader.write(deposit(), COMMANDS)  # on the only connection
            assert seen == list(range(last + 1))
            assert len(asked) == 1 + 1 + len(seen) // 3
            asked.clear()
            async for _ in read():
                break
            assert len(asked) == 1
            assert await reader.stream_version(COMMANDS) == last


@both
@in_loop
async def test_an_iterator_leaves_the_callers_connection_usable(client, database_url, store):
    """An iterator that is stopped in the middle leaves the caller's connection usable."""
    store.write([deposit(f"d{n}") for n in range(5)], COMMANDS)
    for autocommit in (True, False):
        async with await client.connect(database_url, autocommit=autocommit) as own:
            reader = client.on(own)
            async for message in reader.read_category("account:command", batch_size=2):
                if message.position == 2:
                    break
            status = TransactionStatus.IDLE if autocommit else TransactionStatus.INTRANS
            assert own.info.transaction_status == status
            assert await reader.stream_version(COMMANDS) == 4


@in_loop
async def test_tasks_share_a_pool(database_url, store):
    """More tasks than connections write and read at one time, and all of them finish."""
    async with await AsyncMessageStore.open(database_url, max_connections=3) as sender:

        async def work(n):
            positions = [await sender.write(deposit(f"d{n}-{i}"), COMMANDS) for i in range(5)]
            assert positions == sorted(positions)
            async for message in sender.read_stream(COMMANDS, batch_size=4):
                assert message.stream_name == COMMANDS
            return positions

        done = await asyncio.wait_for(asyncio.gather(*map(work, range(12))), 60)
    assert sorted(position for positions in done for position in positions) == list(range(60))
    assert store.stream_version(COMMANDS) == 59


@in_loop
async def test_tasks_share_a_connection(database_url):
    """Tasks that share a connection take turns, and each gets its own answer."""
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as own:
        sender = AsyncMessageStore(own)
        streams = [f"account:command-{n}" for n in range(20)]
        await asyncio.gather(*(sender.write_initial(deposit(s), s) for s in streams))
        last = await asyncio.gather(*(sender.last_message(s) for s in streams))
        assert [m.stream_name for m in last] == streams


@in_loop
async def test_a_write_that_is_cancelled_while_it_waits(database_url, connection):
    """A cancelled write that waits stores nothing, and the pool's only connection stays usable."""
    async with await AsyncMessageStore.open(database_url, max_connections=1) as sender:
        with psycopg.connect(database_url) as holder:
            MessageStore(holder).lock_categories([COMMANDS])
            writing = asyncio.create_task(sender.write(deposit("d1"), COMMANDS))
            while not waiting(connection):
                await asyncio.sleep(0)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(writing, 60)
            assert writing.cancelled()
            assert not waiting(connection)
        assert await asyncio.wait_for(sender.write(deposit("d2"), COMMANDS), 60) == 0


@in_loop
async def test_a_cancelled_write_in_the_callers_transaction(database_url, connection, store):
    """After a cancelled write the caller rolls back and goes on with the same connection."""
    async with await psycopg.AsyncConnection.connect(database_url) as own:
        sender = AsyncMessageStore(own)
        with psycopg.connect(database_url) as holder:
            MessageStore(holder).lock_categories([COMMANDS])
            writing = asyncio.create_task(sender.write(deposit("d1"), COMMANDS))
            while not waiting(connection):
                await asyncio.sleep(0)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(writing, 60)
            with pytest.raises(StoreError, match="earlier statement on this connection failed"):
                await sender.write(deposit("d1"), COMMANDS)
        await own.rollback()
        assert await sender.write(deposit("d2"), COMMANDS) == 0
        await own.commit()
    assert store.stream_version(COMMANDS) == 0


def waiting(connection):
    """Return whether a write to the test's database waits for the lock of a category."""
    return connection.execute(
        "SELECT EXISTS (SELECT FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event = 'advisory')"
    ).fetchone()[0]


@in_loop
async def test_a_write_can_be_cancelled_at_any_step(database_url, store, monkeypatch):
    """A write can be cancelled while it waits for any answer, and its pool stays usable."""
    waits = itertools.count(1)
    cancelled_at = 0

    async def wait(self, *arguments, wait=psycopg.AsyncConnection.wait, **named):
        if next(waits) == cancelled_at:
            asyncio.current_task().cancel()
        return await wait(self, *arguments, **named)

    async with await AsyncMessageStore.open(database_url, max_connections=1) as sender:
        await sender.stream_version(COMMANDS)  # the pool has made its connection ready
        monkeypatch.setattr(psycopg.AsyncConnection, "wait", wait)
        outcome = None
        while not isinstance(outcome, int):
            cancelled_at, waits = cancelled_at + 1, itertools.count(1)
            writing = asyncio.create_task(sender.write(deposit(), COMMANDS))
            (outcome,) = await asyncio.gather(writing, return_exceptions=True)
            assert isinstance(outcome, int | asyncio.CancelledError), outcome
            waits = itertools.repeat(0)
            version = await asyncio.wait_for(sender.stream_version(COMMANDS), 60)
            assert version == store.stream_version(COMMANDS)
    assert cancelled_at > 1  # the statement, at least


@in_loop
async def test_a_cancelled_reader_gives_back_its_connection(database_url, store):
    """A cancelled reader returns its connection, also while it waits for one."""
    store.write([deposit(f"d{n}") for n in range(5)], COMMANDS)
    async with await AsyncMessageStore.open(database_url, max_connections=1) as reader:
        reached = asyncio.Event()

        async def read():
            async for message in reader.read_stream(COMMANDS, batch_size=2):
                if message.position == 2:
                    reached.set()
                    await asyncio.Event().wait()

        reading = asyncio.create_task(read())
        await asyncio.wait_for(reached.wait(), 60)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await asyncio.wait_for(reader.stream_version(COMMANDS), 60) == 4


def test_a_source_of_the_other_kind_is_refused(database_url, connection):
    """The sync client refuses an async connection, and the async client a sync one."""
    with pytest.raises(StoreError, match="not a Connection"):
        AsyncMessageStore(connection)

    async def refuse():
        async with await psycopg.AsyncConnection.connect(database_url) as own:
            with pytest.raises(StoreError, match="AsyncMessageStore takes those"):
                MessageStore(own)

    asyncio.run(refuse())


@both
@in_loop
async def test_an_unreachable_database(client):
    """Opening a store on an unreachable database fails at once, without showing the password."""
    with pytest.raises(DatabaseUnavailableError, match="Cannot reach") as caught:
        await client.open("postgresql://u:a-secret@127.0.0.1:1/none")
    assert "a-secret" not in str(caught.value)
