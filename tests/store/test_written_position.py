"""What a write returns: the position in the stream, and the global one."""

import asyncio
import copy
import pickle
import uuid

import pytest

from bank import account
from reservation import AsyncMessageStore, MessageStore, Write
from tests.store.builders import as_login, granted, new_role
from tests.store.clients import CLIENTS, in_loop
from tests.support.controls import deposit, open_

__all__ = ["granted", "new_role"]  # fixtures


def both(written):
    """Return the position in the stream, and the global one."""
    return int(written), written.global_position


@pytest.mark.parametrize("client", CLIENTS)
@in_loop
async def test_each_way_to_write_gives_both(client, database_url):
    """Messages of a batch have theirs in the order given."""
    async with await client.open(database_url) as store:
        assert both(await store.send(open_(), account)) == (0, 1)
        assert both(await store.write([deposit("a"), deposit("b")], "account:command-123")) == (
            2,
            3,
        )
        assert both(await store.write_initial(open_("9"), "account:command-9")) == (0, 4)
        writes = [
            Write(deposit(name), stream)
            for name, stream in (("c", "x-1"), ("d", "account:command-9"), ("e", "x-1"))
        ]
        assert [*map(both, await store.write_batch(writes))] == [(0, 5), (1, 6), (1, 7)]
        stored = [(one.position, one.global_position) async for one in store.read_category("x")]
        assert stored == [(0, 5), (1, 7)]


@pytest.mark.parametrize("client", CLIENTS)
@in_loop
async def test_a_message_that_is_stored_has_the_positions_of_the_first(client, database_url):
    """Alone, and in a batch with new ones, also where the batch names it twice."""
    first, second, third = (uuid.uuid4() for _ in range(3))
    async with await client.open(database_url) as store:
        await store.send(open_(), account)
        sent = await store.send(deposit("a"), account, id=first)
        assert both(await store.send(deposit("a"), account, id=first)) == both(sent) == (1, 2)
        writes = [
            Write(deposit(name), "account:command-123", message_id)
            for name, message_id in (("b", second), ("a", first), ("b", second), ("c", third))
        ]
        assert [*map(both, await store.write_batch(writes))] == [(2, 3), (1, 2), (2, 3), (3, 4)]
        assert [*map(both, await store.write_batch(writes))] == [(2, 3), (1, 2), (2, 3), (3, 4)]


def test_gathered_writes_have_their_own(database_url):
    """One that is refused is written by itself, and gets its error."""

    async def write():
        async with await AsyncMessageStore.open(database_url, gather=True) as store:
            return await asyncio.gather(
                *(store.write(deposit(f"{n}"), f"account:command-{n % 3}") for n in range(20)),
                store.write(deposit("x"), "account:command-0", expected_version=99),
                return_exceptions=True,
            )

    *written, refused = asyncio.run(write())
    assert isinstance(refused, Exception)
    with MessageStore.open(database_url) as store:
        stored = {
            (message.stream_name, message.position): message.global_position
            for message in store.read_category("account:command")
        }
    found = {
        (f"account:command-{n % 3}", int(at)): at.global_position for n, at in enumerate(written)
    }
    assert found == stored


def test_it_is_known_within_a_transaction(connection):
    """Before the commit, in the order in which the messages get their places."""
    with connection.transaction():
        store = MessageStore(connection)
        assert both(store.send(open_(), account)) == (0, 1)
        assert both(store.send(deposit(), account)) == (1, 2)


def test_a_sender_is_told(connection, database_url, granted):
    """Although it may not read the log."""
    login = as_login(connection, database_url, granted("sender", "account:command"))
    message_id = uuid.uuid4()
    with MessageStore.open(login) as store:
        assert both(store.send(open_(), account, id=message_id)) == (0, 1)
        assert both(store.send(open_(), account, id=message_id)) == (0, 1)
        batch = [Write(deposit(name), "account:command-123") for name in ("a", "b")]
        assert [*map(both, store.write_batch(batch))] == [(1, 2), (2, 3)]


@pytest.mark.parametrize("copied", [copy.copy, lambda at: pickle.loads(pickle.dumps(at))])
def test_it_is_a_number_that_can_be_copied(store, copied):
    """As any other number."""
    store.write(open_(), "x-1")
    at = copied(store.write(deposit(), "x-1"))
    assert (at, at + 1, at.global_position, f"{at}") == (1, 2, 2, "1")
