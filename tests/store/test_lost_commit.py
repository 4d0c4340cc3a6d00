"""After a cut connection, an unknown outcome of a commit is distinguished from a failure."""

import asyncio
import threading
from itertools import count
from uuid import uuid4

import psycopg
import pytest

from reservation import NO_STREAM, Metadata, Write
from reservation.errors import CommitUnknownError, DatabaseUnavailableError, StoreError
from tests.store.clients import CLIENTS, in_loop
from tests.support.controls import COMMANDS, deposit
from tests.support.proxy import Cut, Proxy
from tests.support.started import PATIENCE

pytestmark = pytest.mark.parametrize("client", CLIENTS)

SECRET = "a-secret"


@pytest.fixture
def proxy(database_url):
    """Give a proxy before the test's database; the address has a password that must not show."""
    address = psycopg.conninfo.make_conninfo(database_url)
    known = psycopg.conninfo.conninfo_to_dict(address)
    if not known.get("password"):
        address = psycopg.conninfo.make_conninfo(address, password=SECRET)
    with Proxy(address) as between:
        yield between


def says_nothing_secret(error, address):
    """Return whether an error shows neither the payload nor the password."""
    password = psycopg.conninfo.conninfo_to_dict(address)["password"]
    return password not in str(error) and "10.50" not in str(error) and "d1" not in str(error)


@in_loop
async def test_a_lost_answer_to_a_pools_commit_is_reported(client, proxy, store):
    """After a lost answer the write is stored, and a retry with the error's ids is harmless."""
    given, metadata = uuid4(), Metadata(correlation_stream_name="transfer-1")
    writes = [Write(deposit(k), COMMANDS, id=i) for k, i in (("d1", given), ("d2", None))]
    async with await client.transacting(proxy.address) as sender:
        for n, writing in enumerate((writes, [Write(deposit("d3"), COMMANDS, None, metadata)])):
            proxy.cut(Cut.AFTER, "COMMIT")
            with pytest.raises(CommitUnknownError, match="Write again with the same ids") as caught:
                await sender.write_batch(writing)
            assert proxy.happened.is_set()
            assert says_nothing_secret(caught.value, proxy.address)
            ids = caught.value.ids
            assert [str(i) for i in ids] == [m.id for m in store.read_stream(COMMANDS)][2 * n :]
            again = [
                Write(w.message, w.stream_name, i, w.metadata)
                for w, i in zip(writing, ids, strict=True)
            ]
            assert await sender.write_batch(again) == [[0, 1], [2]][n]
    assert given in [w.id for w in writes]
    assert store.stream_version(COMMANDS) == 2


@in_loop
async def test_a_pool_that_did_not_get_to_its_commit_has_written_nothing(client, proxy, store):
    """A connection cut before the commit has certainly written nothing."""
    async with await client.transacting(proxy.address) as sender:
        for when in Cut:
            proxy.cut(when, "reservation.write_message")
            with pytest.raises(DatabaseUnavailableError, match="was lost") as caught:
                await sender.write(deposit(), COMMANDS)
            assert proxy.happened.is_set()
            assert not isinstance(caught.value, CommitUnknownError)
            assert says_nothing_secret(caught.value, proxy.address)
        assert store.stream_version(COMMANDS) == NO_STREAM
        assert await sender.write(deposit(), COMMANDS) == 0


@in_loop
async def test_a_commit_that_did_not_arrive_is_unknown_as_well(client, proxy, store):
    """The outcome of a commit that did not arrive is unknown; a retry stores the message."""
    async with await client.transacting(proxy.address) as sender:
        proxy.cut(Cut.BEFORE, "COMMIT")
        with pytest.raises(CommitUnknownError) as caught:
            await sender.write(deposit(), COMMANDS)
        assert store.stream_version(COMMANDS) == NO_STREAM
        assert await sender.write(deposit(), COMMANDS, id=caught.value.ids[0]) == 0
    assert store.stream_version(COMMANDS) == 0


@pytest.mark.parametrize("when", [Cut.AFTER, Cut.WITHIN])
@in_loop
async def test_a_statement_that_commits_at_once_may_have_been_committed(client, proxy, store, when):
    """In autocommit the outcome of a statement is unknown when its answer is lost."""
    given = uuid4()
    async with await client.connect(proxy.address, autocommit=True) as connection:
        proxy.cut(when, "reservation.commit_message")
        with pytest.raises(CommitUnknownError) as caught:
            await client.on(connection).write(deposit(), COMMANDS, id=given)
    assert says_nothing_secret(caught.value, proxy.address)
    assert caught.value.ids == (given,)
    assert [m.id for m in store.read_stream(COMMANDS)] == [str(given)]
    async with await client.connect(proxy.address, autocommit=True) as connection:
        assert await client.on(connection).write(deposit(), COMMANDS, id=given) == 0
    assert store.stream_version(COMMANDS) == 0


@pytest.mark.parametrize("autocommit", [True, False])
@in_loop
async def test_within_the_callers_transaction_nothing_is_in_doubt(client, proxy, store, autocommit):
    """A connection lost within the caller's transaction has certainly written nothing."""
    connection = await client.connect(proxy.address, autocommit=autocommit)

    async def write():
        async with connection.transaction():
            await client.on(connection).write(deposit(), COMMANDS)

    proxy.cut(Cut.AFTER, "reservation.write_message")
    with pytest.raises(DatabaseUnavailableError) as caught:
        await write()
    assert not isinstance(caught.value, CommitUnknownError)
    await connection.close()
    assert store.stream_version(COMMANDS) == NO_STREAM


@pytest.mark.parametrize("when", list(Cut))
@in_loop
async def test_a_read_is_never_in_doubt(client, proxy, store, when):
    """A read whose connection is cut raises a lost connection, never an unknown commit."""
    store.write([deposit(f"d{n}") for n in range(20)], COMMANDS)

    async def every(messages):
        return [message async for message in messages]

    reads = {
        "read_stream": lambda s: every(s.read_stream(COMMANDS)),
        "read_category": lambda s: every(s.read_category("account:command")),
        "read_streams": lambda s: s.read_streams({COMMANDS: 0}),
        "last_message": lambda s: s.last_message(COMMANDS),
        "SELECT coalesce": lambda s: s.stream_version(COMMANDS),
    }
    async with await client.open(proxy.address, max_connections=1) as reader:
        for statement, read in reads.items():
            proxy.cut(when, statement)
            with pytest.raises(DatabaseUnavailableError, match="was lost") as caught:
                await read(reader)
            assert proxy.happened.is_set()
            assert type(caught.value) is DatabaseUnavailableError
            assert says_nothing_secret(caught.value, proxy.address)
            async with await client.connect(proxy.address, autocommit=True) as connection:
                proxy.cut(when, statement)
                with pytest.raises(DatabaseUnavailableError) as caught:
                    await read(client.on(connection))
            assert type(caught.value) is DatabaseUnavailableError


@in_loop
async def test_a_pool_gives_no_connection_that_the_server_has_closed(client, proxy, store, admin):
    """The first call after a restart of the server gets a working connection."""
    address = psycopg.conninfo.make_conninfo(proxy.address, application_name="idle")
    async with await client.open(address, max_connections=1) as sender:
        assert await sender.write(deposit(), COMMANDS) == 0
        proxy.drop()
        assert await sender.write(deposit(), COMMANDS) == 1
        terminate(admin, "idle")
        assert proxy.unused.wait(PATIENCE)
        assert await sender.write(deposit(), COMMANDS) == 2
        terminate(admin, "idle")
        assert proxy.unused.wait(PATIENCE)
        assert await sender.stream_version(COMMANDS) == 2


def terminate(admin, name):
    """End the server's processes for an application, and wait until they are gone."""
    ended = admin.execute(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = %s",
        [name],
    ).fetchall()
    assert set(ended) == {(True,)}  # one whose client is gone may not know it yet


@pytest.mark.parametrize("source", ["pool", "own pool", "autocommit", "transaction"])
@in_loop
async def test_a_writer_that_is_ended_while_it_waits_for_the_lock(
    client, database_url, store, admin, source
):
    """A writer ended while waiting has written nothing; only autocommit leaves doubt."""
    address = psycopg.conninfo.make_conninfo(database_url, application_name="waiting")
    unknown = source in ("pool", "autocommit")

    async def write():
        if "pool" in source:
            opening = client.open(address) if unknown else client.transacting(address)
            async with await opening as sender:
                await sender.write(deposit("d1"), COMMANDS)
        else:
            async with await client.connect(address, autocommit=unknown) as connection:
                await client.on(connection).write(deposit("d1"), COMMANDS)

    def end_it():
        for _ in count():  # until it is there to be ended
            if admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'waiting' AND wait_event = 'advisory'"
            ).fetchall():
                return

    with psycopg.connect(database_url) as holder:
        holder.execute("SELECT reservation.lock_categories(%s)", [[COMMANDS]])
        ending = threading.Thread(target=end_it, daemon=True)
        ending.start()
        with pytest.raises(DatabaseUnavailableError, match="terminating connection") as caught:
            await asyncio.wait_for(write(), 60)
        ending.join()
    assert isinstance(caught.value, CommitUnknownError) == unknown
    assert store.stream_version(COMMANDS) == NO_STREAM


@in_loop
async def test_a_closed_pool_or_connection_is_named(client, database_url):
    """The error of a closed pool or connection names it, and is no lost commit."""
    sender = await client.open(database_url)
    await sender.close()
    with pytest.raises(DatabaseUnavailableError, match=r"The pool gives no connection.*closed"):
        await sender.write(deposit(), COMMANDS)
    for autocommit in (True, False):
        connection = await client.connect(database_url, autocommit=autocommit)
        await connection.close()
        with pytest.raises(StoreError, match=r"connection .*is closed") as caught:
            await client.on(connection).write(deposit(), COMMANDS)
        assert type(caught.value) is DatabaseUnavailableError
