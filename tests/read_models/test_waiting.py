"""Waiting until the views show what was written."""

import asyncio
import time
from datetime import UTC, datetime

import pytest

import consumers
from bank.messages import Open, Opened
from reservation import AsyncMessageStore, MessageStore, ReadModel
from reservation.errors import StoreError
from tests.apps.bank import account, address
from tests.apps.bank import drain as drain_account
from tests.apps.occupancy import BOOKINGS, Cancelled, book, by_sets, nights, one_by_one
from tests.consumers.builders import decide
from tests.support.consuming import hosted


def last(store):
    return list(store.read_category(BOOKINGS))[-1].global_position


def test_a_reader_sees_what_it_wrote(connection, store):
    """The answer comes once the rows are committed."""
    model = one_by_one()
    with hosted(model, address(connection)):
        for n in range(5):
            book(store, n, booking=f"b{n}")
            assert model.wait_for(store, last(store), timeout=30)
            assert nights(connection)[n] == 1


def test_it_waits_in_an_event_loop_too(connection, store):
    """With a store for that."""
    model = one_by_one()

    async def wait():
        async with await AsyncMessageStore.open(address(connection)) as opened:
            return await model.wait_for(opened, last(store), 30)

    book(store, 1)
    with hosted(model, address(connection)):
        assert asyncio.run(wait())
    assert nights(connection) == {1: 1}


def test_the_time_may_be_over(connection, store):
    """Before the model was ever run, and while its consumers stand still."""
    model = one_by_one()
    book(store, 1)
    began = time.monotonic()
    assert not model.wait_for(store, last(store), timeout=0.2)
    assert 0.2 <= time.monotonic() - began < 30
    consumers.drain(model, address(connection))
    assert model.wait_for(store, last(store), timeout=0)
    book(store, 2)
    assert not model.wait_for(store, last(store), timeout=0)


def test_a_position_of_another_category_is_passed(connection, store):
    """Consumers stand at the last message of what they read."""
    model = one_by_one()
    book(store, 1)
    consumers.drain(model, address(connection))
    store.write(Cancelled("b", 1), "elsewhere-1")
    assert model.wait_for(store, last(store) + 1, timeout=0)


def test_an_event_that_is_a_dead_letter_is_not_shown(connection, store):
    """Positions have passed it, and its rows are not there."""
    model = one_by_one(attempts=1)
    book(store, 1, rooms=13)
    book(store, 2, booking="later")
    consumers.drain(model, address(connection))
    for position in (1, 2):
        assert not model.wait_for(store, position, timeout=0)
    decide(connection, "discard", "--all", "--yes", "--reason", "never")
    assert model.wait_for(store, last(store), timeout=0)


def test_it_is_the_version_that_the_views_show(connection, store):
    """A new release waits for the old version as long as readers see that."""
    old, new = one_by_one(), by_sets()
    book(store, 1)
    consumers.drain(old, address(connection))
    assert new.wait_for(store, last(store), timeout=0)
    consumers.drain(new, address(connection))
    book(store, 2)
    consumers.drain(new, address(connection))
    assert not new.wait_for(store, last(store), timeout=0)


def test_an_outcome_gives_the_position_to_wait_for(connection, store):
    """That of the last event, which the model reads."""
    model = ReadModel("accounts", version=1)
    model.tables(lambda connection: connection.execute("CREATE TABLE a (id text PRIMARY KEY)"))
    model.handle(Opened, category="account")(lambda event, context: None)
    command = Open("123", "456", datetime.now(UTC))
    assert store.outcome(command, account).position == 0
    store.send(command, account)
    assert store.outcome(command, account).position == 1
    drain_account(connection)
    outcome = store.outcome(command, account)
    assert outcome.position == outcome.stored_events[-1].global_position > 1
    assert not model.wait_for(store, outcome.position, timeout=0)
    consumers.drain(model, address(connection))
    assert model.wait_for(store, outcome.position, timeout=0)


@pytest.mark.parametrize("position", [-1, "1", None, True])
def test_a_position_is_a_number(store, position):
    """A stream's name is none."""
    with pytest.raises(StoreError, match="is not a global position"):
        one_by_one().wait_for(store, position)


def test_waiting_in_a_transaction_is_refused(database_url, connection):
    """What it waits for could not be seen."""
    with connection.transaction(), pytest.raises(StoreError, match="commit first"):
        one_by_one().wait_for(MessageStore(connection), 1)
