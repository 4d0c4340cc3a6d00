"""What a consumer asks as soon as it is woken, and what it takes in one round trip."""

import secrets
import time
from collections import Counter

import psycopg
import pytest

from bank import account
from bank.messages import Deposited, Open, Opened
from consumers.batch import reading
from consumers.batch.batch import Batch
from consumers.decisions.blocking import FailurePolicy
from consumers.group.membership import Membership
from consumers.group.positions import Positions
from consumers.runtime.context import ConsumerContext
from reservation import Component, MessageStore
from reservation.entity.cache import EntityCache
from reservation.errors import LockTimeoutError, MessageError, PositionLostError, StoreError
from reservation.idempotence.reserve import reserve
from reservation.store.notifications import Notices, set_notices
from tests.bank import RESERVED, claim, drain, event_types, session
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


def deposited(key, account="1"):
    """Return an event."""
    sent = deposit(key, account=account)
    return Deposited(key, account, sent.amount, sent.time, sent.time, 0)


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


def test_commands_are_reserved_in_one_round_trip(keeping, store, exchanges):
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


def test_many_commands_are_reserved_in_one_round_trip_each_batch(keeping, store, exchanges):
    """A backlog is reserved batch by batch, and nothing of it is transferred."""
    batch, positions = after_one(keeping, store)
    store.write([deposit(f"d{n % 2200}") for n in range(2500)], COMMANDS)
    exchanges.clear()
    results = [batch.run(positions, 1000) for _ in range(4)]
    assert exchanges.count(keeping) == 4
    assert [(result.read, result.ended) for result in results] == [
        (1000, False),
        (1000, False),
        (500, True),
        (0, True),
    ]
    counts = sum((result.counts for result in results), Counter())
    assert counts == {"reserved": 2199, "duplicate": 301}
    copies = [message.stream_name for message in store.read_category(RESERVED)]
    assert copies == [f"{RESERVED}-123+d{n}" for n in range(2200)]


def test_batches_after_a_conflict_are_decided_on_first(keeping, store, exchanges):
    """Where commands are in conflict, few large batches are done twice."""
    batch, positions = after_one(keeping, store)
    store.write([*(deposit(f"a{n}") for n in range(249)), deposit("d0", "99")], COMMANDS)
    result = batch.run(positions, 250, policy=POLICY)
    assert result.counts == {"reserved": 249, "conflict": 1}
    at_once = []
    for name in ("k", "l", "m", "n"):
        store.write([deposit(f"{name}{n}") for n in range(250)], COMMANDS)
        exchanges.clear()
        assert batch.run(positions, 250, policy=POLICY).counts == {"reserved": 250}
        at_once.append(exchanges.count(keeping) == 1)
    assert at_once == [False, False, True, True]
    store.write(deposit("d0", "98"), COMMANDS)
    assert batch.run(positions, 250, policy=POLICY).counts == {"conflict": 1}
    store.write(deposit("f"), COMMANDS)
    exchanges.clear()
    assert batch.run(positions, 250, policy=POLICY).counts == {"reserved": 1}
    assert exchanges.count(keeping) == 1


def test_other_commands_are_decided_on(keeping, store):
    """Commands that need the component's code are handled with those that are reserved."""
    batch, positions = after_one(keeping, store)
    store.write([deposit("d1"), open_(), deposit("d2")], COMMANDS)
    assert batch.run(positions, 100).counts == {"reserved": 2, "handled": 1}
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


@pytest.mark.parametrize("state", ["09000", "23514", "P0001", "UE001"])
def test_a_refusal_at_the_commit_is_that_of_a_message(keeping, connection, store, state):
    """What a deferred trigger refuses is a dead letter, whatever the trigger calls it."""
    connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE 'refused' USING ERRCODE = '{state}'; END $$;"
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON message_store.messages "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        f"WHEN (NEW.stream_name = '{RESERVED}-123+bad') EXECUTE FUNCTION refuse()"
    )
    batch, positions = after_one(keeping, store)
    store.write([deposit("d1"), deposit("bad"), deposit("d2")], COMMANDS)
    with pytest.raises(MessageError):  # the ordinary way has tried it too
        batch.run(positions, 100, policy=POLICY)
    counts = drain(connection).counts
    assert (counts["reserved"], counts["dead"], counts["handled"]) == (1, 1, 2)  # d2 is parked


def test_batches_that_are_reserved_grow_again(keeping, store):
    """After a batch that ended early, each that is reserved reads twice as much."""
    large = Component("account", id="account_id")
    large.reserve(type(deposit()), into=RESERVED, entity="account_id", key="deposit_id")

    @large.initiate(Open)
    def begin(command: Open, context) -> Opened:
        return Opened(command.account_id, "x" * 2_000, command.time, command.time)

    batch = Batch(ConsumerContext.of(keeping, large, SENT), batch_bytes=1_000)
    positions = claim(keeping, large.name, SENT)
    store.write([open_(str(n)) for n in range(3)], COMMANDS)
    store.write([deposit(f"d{n}") for n in range(300)], COMMANDS)
    read = []
    while not read or read[-1]:
        read.append(batch.run(positions, 100, policy=POLICY).read)
    assert max(read) > 64
    assert sum(read) == 303


def test_long_keys_are_not_asked_for_again_and_again(keeping, store, exchanges):
    """A name that the server does not vouch for is looked at, and the next one too."""
    batch, positions = after_one(keeping, store)
    taken = []
    for n in range(3):
        store.write(deposit(f"{n}" * 700), COMMANDS)
        exchanges.clear()
        assert batch.run(positions, 100, policy=POLICY).counts == {"reserved": 1}
        taken.append(exchanges.count(keeping))
    assert taken[0] > taken[1] == taken[2]


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
        before, end, sent = len(turns), time.monotonic() + 30, 0
        while len(turns) <= before + 1:
            assert time.monotonic() < end
            sent += 1
            store.write(deposit(f"d{sent}"), COMMANDS)
            until(lambda: store.stream_version(f"{RESERVED}-123+d{sent}") == 0)  # noqa: B023


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


def test_large_events_are_read_only_where_they_are_needed(keeping, store, monkeypatch):
    """Of an entity whose last events are large none or few are read along, and it is the same."""
    large, sizes = Component("large", entity=list, id="account_id"), []
    large.reserve(type(deposit()), into="largeCopy", entity="account_id", key="deposit_id")
    large.project(Deposited)(lambda entity, event: entity.append(event.deposit_id))

    @large.handle(type(deposit()))
    def handle(command, entity, context):
        sizes.append((command.account_id, len(entity)))
        return deposited(command.deposit_id, command.account_id)

    copies = "largeCopy"
    handling, positions = claimed(keeping, large, copies)
    # Of random text, which the server cannot compress.
    store.write([deposited(secrets.token_urlsafe(90_000)) for _ in range(3)], "large-1")
    store.write([deposited(secrets.token_urlsafe(30_000)) for _ in range(3)], "large-2")
    read, read_rows = [], reading._with_events

    def noted(rows):
        found = read_rows(rows)
        read.append({name: len(events) for name, events in found[1].items()})
        return found

    monkeypatch.setattr(reading, "_with_events", noted)
    for n, account_id in enumerate(["1", "2", "3", "1"]):
        store.write(deposit(f"d{n}", account=account_id), f"{copies}-{account_id}+d{n}")
    assert handling.run(positions, 100).counts == {"handled": 4}
    assert read == [{"large-2": 1, "large-3": 0}]
    assert sizes == [("1", 3), ("2", 3), ("3", 0), ("1", 4)]
    # One message at a time is read without events.
    store.write(deposit("d4", account="2"), f"{copies}-2+d4")
    assert handling.run(positions, 1).counts == {"handled": 1}
    assert len(read) == 1
    assert sizes[-1] == ("2", 4)


def test_a_connection_with_another_encoding_takes_nothing(keeping, store):
    """Where a handler has left another encoding, no command gets to a stream of another name."""
    batch, positions = after_one(keeping, store)
    store.write(deposit("d1"), COMMANDS)
    keeping.execute("SET client_encoding TO 'LATIN1'")
    with pytest.raises(StoreError, match="client_encoding of the connection is LATIN1"):
        batch.run(positions, 100)
    with pytest.raises(StoreError, match="client_encoding of the connection is LATIN1"):
        reserve(keeping, [(2, f"{RESERVED}-1")], {})
    assert store.stream_version(f"{RESERVED}-123+d1") == -1
    keeping.execute("SET client_encoding TO 'UTF8'")
    assert batch.run(positions, 100).counts == {"reserved": 1}


def test_another_transaction_in_the_way_is_no_refusal(keeping, connection, store):
    """What waited too long for a lock is reported as that, as without the short way."""
    batch, positions = after_one(keeping, store)
    store.write(deposit("d1"), COMMANDS)
    keeping.execute("SET lock_timeout TO '50ms'")
    with connection.transaction():
        store_of_other = MessageStore(connection)
        store_of_other.lock_categories([f"{RESERVED}-1"])
        with pytest.raises(LockTimeoutError):
            batch.run(positions, 100)
    assert batch.run(positions, 100).counts == {"reserved": 1}


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
