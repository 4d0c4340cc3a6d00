"""What a consumer asks as soon as it is woken, and what it takes in one round trip."""

import time

import psycopg
import pytest

from bank import account
from consumers.batch.batch import Batch
from consumers.decisions.blocking import FailurePolicy
from consumers.group.membership import Membership
from consumers.group.positions import Positions
from consumers.runtime.context import ConsumerContext
from reservation import Component
from reservation.entity.cache import EntityCache
from reservation.errors import PositionLostError
from reservation.store.notifications import Notices, set_notices
from tests.bank import RESERVED, claim, event_types, session
from tests.consuming import running, until
from tests.controls import COMMANDS, deposit, open_, withdraw

SENT = "account:command"
POLICY = FailurePolicy(in_part=True)


@pytest.fixture
def keeping(database_url):
    """Give a connection as consumers have it, and the round trips that it takes."""
    with session(database_url) as opened:
        yield opened.connection


def claimed(connection, component=account, category=SENT):
    """Return the batches of a consumer, and what it holds."""
    return (
        Batch(ConsumerContext.of(connection, component, category)),
        claim(connection, component.name, category),
    )


def after_one(keeping, store):
    """Return the same after the first batch, which shows that nothing is corrected."""
    batch, positions = claimed(keeping)
    store.write(deposit("d0"), COMMANDS)
    assert batch.run(positions, 100).counts == {"reserved": 1}
    return batch, positions


@pytest.fixture
def exchanges(monkeypatch):
    """Give the connections that waited for the server, once for each time."""
    waited, wait = [], psycopg.Connection.wait

    def counted(connection, *arguments, **options):
        waited.append(connection)
        return wait(connection, *arguments, **options)

    monkeypatch.setattr(psycopg.Connection, "wait", counted)
    return waited


def test_few_commands_are_reserved_in_one_round_trip(keeping, store, exchanges):
    """Commands whose keys the server takes are read, reserved and committed at once."""
    batch, positions = after_one(keeping, store)
    store.write([deposit("d1"), deposit("d0"), withdraw("w1"), deposit("d1")], COMMANDS)
    for _ in range(2):
        exchanges.clear()
        result = batch.run(positions, 100)
        assert exchanges.count(keeping) == 1
        if result.moved:
            assert (result.read, result.counts) == (4, {"reserved": 2, "duplicate": 2})
            assert result.ended
    copies = [message.stream_name for message in store.read_category(RESERVED)]
    assert copies == [f"{RESERVED}-123+{key}" for key in ("d0", "d1", "w1")]


def test_other_commands_are_decided_on(keeping, store):
    """Commands that need the component's code are handled with those that are reserved."""
    batch, positions = after_one(keeping, store)
    store.write([deposit("d1"), open_(), deposit("d2")], COMMANDS)
    assert batch.run(positions, 100).counts == {"reserved": 2, "handled": 1}
    store.write([deposit(f"many{n}") for n in range(101)], COMMANDS)
    assert batch.run(positions, 1000).counts == {"reserved": 101}
    store.write(deposit("d1"), COMMANDS)
    assert batch.run(positions, 1000).counts == {"duplicate": 1}
    assert event_types(store) == ["Opened"]


def test_a_conflict_leaves_nothing_of_the_first_attempt(keeping, store):
    """A batch with a conflict is taken again in the ordinary way, and reported as always."""
    batch, positions = after_one(keeping, store)
    store.write([deposit("d1"), deposit("d0", "99")], COMMANDS)
    result = batch.run(positions, 100, policy=POLICY)
    assert result.counts == {"reserved": 1, "conflict": 1}
    assert [stream for _, stream in result.conflicts] == [f"{RESERVED}-123+d0"]


def test_a_position_that_was_lost_reserves_nothing(keeping, connection, store):
    """Who lost its position to another process reserves nothing in the one round trip either."""
    batch, positions = after_one(keeping, store)
    store.write(deposit("d1"), COMMANDS)
    connection.execute("UPDATE reservation.positions SET epoch = epoch + 1")
    with pytest.raises(PositionLostError):
        batch.run(positions, 100)
    assert len(list(store.read_category(RESERVED))) == 1


def test_a_batch_that_was_asked_for_is_the_next(keeping, store, exchanges):
    """What was asked for is taken by the next run, whether it reserves or reads."""
    batch, positions = after_one(keeping, store)
    handling, copies = claimed(keeping, category=RESERVED)
    assert handling.run(copies, 100).counts == {"handled": 1}
    store.write([deposit("d1"), deposit("d2")], COMMANDS)
    for taken, held, counts in ((batch, positions, "reserved"), (handling, copies, "handled")):
        taken.get_ready(held, 100, POLICY)
        assert not taken.has_begun
        taken.ask()
        assert taken.has_begun
        exchanges.clear()
        assert taken.run(held, 100, policy=POLICY).counts == {counts: 2}
        assert not taken.has_begun
    assert event_types(store) == ["Deposited"] * 3


def test_nothing_is_asked_of_a_part_of_a_category(keeping, store):
    """Where a process holds a part of the category only, it asks when it comes to that."""
    batch, _ = after_one(keeping, store)
    positions = Positions("account", SENT, 2)
    batch.get_ready(positions, 100, POLICY)
    batch.ask()
    assert not batch.has_begun


def test_a_consumer_that_is_woken_all_the_time_takes_its_turns(
    connection, store, database_url, monkeypatch
):
    """However soon each message follows, the lease is renewed when that is due."""
    set_notices(connection, on=True)
    turns, turn = [], Membership.turn

    def counted(membership, connection):
        turns.append(membership)
        turn(membership, connection)

    monkeypatch.setattr(Membership, "turn", counted)
    monkeypatch.setattr("consumers.group.membership.TURN", 0.05)
    monkeypatch.setattr("consumers.loop.consumer.TURN", 60.0)
    monkeypatch.setattr("consumers.loop.consumer.POLL", 60.0)
    notices = Notices(None, database_url, SENT)
    with notices, running(account, database_url, SENT, notices=notices):
        until(lambda: turns)
        before, end, sent = len(turns), time.monotonic() + 1, 0
        while time.monotonic() < end:
            sent += 1
            store.write(deposit(f"d{sent}"), COMMANDS)
            until(lambda: store.stream_version(f"{RESERVED}-123+d{sent}") == 0)  # noqa: B023
        assert len(turns) > before + 1


def test_the_events_of_entities_are_read_with_their_messages(keeping, store, monkeypatch):
    """Entities are loaded from what was read with the messages, however long their streams are."""
    batch, positions = claimed(keeping)
    handling, copies = claimed(keeping, category=RESERVED)
    asked, read_streams = [], type(store).read_streams

    def noted(of, positions):
        if positions:
            asked.append(sorted(positions))
        return read_streams(of, positions)

    monkeypatch.setattr(type(store), "read_streams", noted)
    for n in range(30):
        store.write([deposit(f"a{n}"), deposit(f"b{n}", account="456")], COMMANDS)
        assert batch.run(positions, 100).counts == {"reserved": 2}
        assert handling.run(copies, 100).counts == {"handled": 2}
    assert not asked
    assert event_types(store) == event_types(store, "456") == ["Deposited"] * 30
    # Who knows nothing of them needs more than their last events.
    handling = Batch(ConsumerContext.of(keeping, account, RESERVED))
    store.write([deposit("a30"), deposit("c0", account="new")], COMMANDS)
    batch.run(positions, 100)
    assert handling.run(copies, 100).counts == {"handled": 2}
    assert asked == [["account-123"]]


def test_an_entity_is_what_its_whole_stream_makes_it(store):
    """Events that were read before are applied once, and those that are missing are read."""
    made = Component("made", entity=list, id="account_id")
    made.project(type(deposit()))(lambda entity, event: entity.append(event.deposit_id))
    store.write([deposit(f"d{n}") for n in range(4)], "made-1")
    events = list(store.read_stream("made-1"))

    def loaded(cache, last):
        return cache.load(store, ["made-1", "made-2"], last)["made-1"].entity

    cache = EntityCache(list, made.projection)
    assert loaded(cache, {"made-1": events[:2], "made-2": [], "made-3": events}) == ["d0", "d1"]
    assert loaded(cache, {"made-1": events[1:3], "made-2": []}) == ["d0", "d1", "d2"]
    assert loaded(cache, {"made-1": events[3:]}) == ["d0", "d1", "d2", "d3"]
    assert loaded(EntityCache(list, made.projection), {"made-1": events[2:]}) == [
        "d0",
        "d1",
        "d2",
        "d3",
    ]
