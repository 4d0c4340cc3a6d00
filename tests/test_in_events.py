"""Strategies that recognize messages by their events."""

import json
import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

import psycopg
import pytest

from bank.messages import Deposit, Deposited
from reservation import (
    Component,
    MessageIdInEvents,
    Metadata,
    PositionInEvents,
    PseudoEvent,
    StoredMessage,
    Write,
)
from reservation.idempotence.strategy import Incoming
from reservation.postgres.queries import load_queries
from tests.bank import batch
from tests.controls import deposit, withdraw
from tests.idempotence import PURSE, drained, effects, purse, redeliver

RECORDING = [MessageIdInEvents(), PositionInEvents(pseudo_events=True)]
BOTH = [MessageIdInEvents(), PositionInEvents()]


def named(strategy):
    return repr(strategy)


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_a_redelivery_is_a_duplicate(connection, store, once):
    """The handler of a redelivered message is not called, and nothing is written."""
    store.write([deposit("d1"), deposit("d2")], PURSE)
    component = purse(once)
    assert drained(connection, component) == {"handled": 2}
    redeliver(connection)
    calls = []
    component.handlers["Deposit"] = lambda *_: calls.append(1)
    assert drained(connection, component) == {"duplicate": 2}
    assert (calls, effects(store)) == ([], ["Deposited", "Deposited"])


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_each_of_many_messages_of_an_entity_is_recognized(connection, store, once):
    """Every message of an entity is recognized, not only those of its first and last event."""
    store.write([deposit(f"d{n}") for n in range(6)], PURSE)
    component = purse(once)
    assert drained(connection, component) == {"handled": 6}
    redeliver(connection)
    assert drained(connection, component) == {"duplicate": 6}


@pytest.mark.parametrize("once", RECORDING, ids=named)
def test_a_message_without_an_event_leaves_a_pseudo_event(connection, store, once):
    """A message without an event leaves an empty pseudo event that follows it."""
    store.write(withdraw(), PURSE, metadata=Metadata(properties={"user": 7}))
    drained(connection, purse(once))
    (event,) = store.read_stream("purse-123")
    assert (event.type, event.data) == ("PseudoEvent", "{}")
    assert event.metadata.causation_message_stream_name == PURSE
    assert event.metadata.properties == {"user": 7}


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_a_batch_may_hold_messages_from_before_and_after_an_event(connection, store, once):
    """Events are read from the first message of the entity in the batch on."""
    component = purse(once)
    store.write(deposit("d1"), PURSE)
    drained(connection, component)
    store.write(deposit("d2"), PURSE)
    redeliver(connection)
    result = batch(connection, "purse:command", component).run(10)
    assert result.counts == Counter(duplicate=1, handled=1)


FOUR_STEPS = [
    (MessageIdInEvents(), []),
    (PositionInEvents(pseudo_events=True), []),
    (PositionInEvents(), ["Withdrawn"]),
    (None, ["Withdrawn"]),
]


@pytest.mark.parametrize(
    ("once", "then"), FOUR_STEPS, ids=[repr(strategy) for strategy, _ in FOUR_STEPS]
)
def test_a_message_without_effect_has_none_after_the_state_has_changed(
    connection, store, once, then
):
    """A message without effect has none when it is repeated after the state changed."""
    component = purse(once)
    store.write(withdraw(amount="5"), PURSE)  # A
    drained(connection, component)
    assert effects(store) == []
    b = Deposited("d1", "123", deposit().amount, datetime(2026, 1, 1), datetime(2026, 1, 1), 0)  # noqa: DTZ001
    store.write(b, "purse-123")  # by somebody who reads another category
    redeliver(connection)
    drained(connection, component)
    assert effects(store) == ["Deposited", *then]


def test_a_later_sequence_recognizes_earlier_messages_of_the_entity(connection, store):
    """The sequence of a later message recognizes an earlier one that left no event."""
    component = purse(PositionInEvents())
    store.write([withdraw(amount="5"), deposit()], PURSE)
    drained(connection, component)
    redeliver(connection)
    assert drained(connection, component) == {"duplicate": 2}
    assert effects(store) == ["Deposited"]


def test_what_the_events_carry(connection, store):
    """Events carry the message's id or global position, which is not handed on."""
    store.write(deposit(), PURSE)
    (command,) = store.read_stream(PURSE)
    drained(connection, purse(MessageIdInEvents()))
    drained(connection, purse(PositionInEvents(), name="other"))
    store.write(deposit(), "other:command-123")
    (again,) = store.read_stream("other:command-123")
    drained(connection, purse(PositionInEvents(), name="other"))
    (event,), (other,) = store.read_stream("purse-123"), store.read_stream("other-123")
    assert event.metadata.local_properties == {"messageId": command.id}
    assert other.metadata.local_properties == {"sequence": again.global_position}
    assert event.follow_metadata().local_properties == {}


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_a_reissue_under_another_id_is_another_message(connection, store, once):
    """A reissue under another id is another message; only `reserve` recognizes it, by the key."""
    store.write([deposit("d1"), deposit("d1")], PURSE)
    assert drained(connection, purse(once)) == {"handled": 2}
    assert effects(store) == ["Deposited", "Deposited"]


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_entities_are_distinguished(connection, store, once):
    """What one entity has handled is no duplicate for another."""
    component = purse(once)
    store.write([deposit("d1", account="1"), deposit("d2", account="2")], "purse:command-1")
    store.write(deposit("d3", account="1"), "purse:command-1")
    claimed = batch(connection, "purse:command", component)
    claimed.run(1)
    redeliver(connection)
    assert drained(connection, component) == {"duplicate": 1, "handled": 2}
    assert (effects(store, "purse-1"), effects(store, "purse-2")) == (
        ["Deposited"] * 2,
        ["Deposited"],
    )


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_components_that_handle_the_same_message_are_distinguished(connection, store, once):
    """Two components each recognize their own handling of a message."""
    components = [purse(once, name=name) for name in ("purse", "points")]
    for component in components:
        component.reserve(Deposit, into="payments", key="deposit_id")
    store.write(deposit(), PURSE)
    batch(connection, "purse:command", components[0]).run(10)
    for component in components:
        assert batch(connection, "payments", component).run(10).counts == Counter(handled=1)
    redeliver(connection)
    for component in components:
        assert batch(connection, "payments", component).run(10).counts == Counter(duplicate=1)
    assert effects(store, "points-123") == effects(store) == ["Deposited"]


def test_a_sequence_is_kept_for_each_category_that_messages_come_from(connection, store):
    """Sequences of different categories are independent."""
    component = purse(PositionInEvents())
    component.reserve(Deposit, into="payments", key="deposit_id")
    store.write(deposit(amount="100"), PURSE)
    batch(connection, "purse:command", component).run(10)
    store.write(withdraw(amount="5"), PURSE)
    copies = batch(connection, "payments", component)
    # The withdrawal lies behind the copy and is handled before it.
    component.handlers["Withdraw"] = lambda command, entity, context: Deposited(
        "w", "123", command.amount, context.time, context.time, 0
    )
    assert batch(connection, "purse:command", component).run(10).counts["handled"] == 1
    assert copies.run(10).counts == Counter(handled=1)


def incoming(n=1, id_="0190163d-8694-739b-aea5-966c26f8ad91", stream="purse-123"):
    message = StoredMessage(id_, PURSE, "Deposit", 0, n, None, None, datetime(2026, 1, 1))  # noqa: DTZ001
    return Incoming(message, deposit(), stream)


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_a_message_repeated_within_a_batch_is_recognized(connection, once):
    """A repeated message is recognized within a batch, before any event is written."""
    message = incoming()
    check = once.begin(connection, "purse", "purse:command", [message, message])
    assert not check.is_duplicate(message)
    check.effects(message, [PseudoEvent()], Metadata())
    assert check.is_duplicate(message)
    assert not check.is_duplicate(incoming(stream="purse-456"))
    check.record()


def test_a_message_without_an_event_is_not_recognized_within_a_batch(connection):
    """A repeated message without an event is not recognized within a batch either."""
    message = incoming()
    check = PositionInEvents().begin(connection, "purse", "purse:command", [message, message])
    assert check.effects(message, [], Metadata())[0] == []
    assert not check.is_duplicate(message)


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_it_takes_one_statement_for_a_batch(database_url, once):
    """A batch takes one statement, and an empty one takes none."""

    messages = [incoming(n, stream=f"purse-{n % 7}") for n in range(1, 50)]
    with Counting.connect(database_url, autocommit=True) as connection:
        once.begin(connection, "purse", "purse:command", messages)
        assert connection.statements == 1
        once.begin(connection, "purse", "purse:command", [])
        assert connection.statements == 1


class Counting(psycopg.Connection):
    """Counts what is sent to the server."""

    statements = 0

    def wait(self, *args, **kwargs):
        self.statements += 1
        return super().wait(*args, **kwargs)


@dataclass(frozen=True)
class Noted:
    """An event that others write."""


def noting(once):
    """Return a purse that has heard of it."""
    component = purse(once)
    component.message(Noted)
    return component


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_a_stream_is_read_no_further_back_than_the_message(connection, store, once):
    """Events older than the first message of the batch are not read."""
    store.write_batch([Write(Noted(), "purse-123") for n in range(500)])
    store.write(deposit("d1"), PURSE)
    drained(connection, noting(once))
    (command,) = store.read_stream(PURSE)
    queries = load_queries("reservation.idempotence.in_events")
    plan = connection.execute(
        b"EXPLAIN (ANALYZE, FORMAT JSON) " + queries["newer_events"],
        [["purse-123"], [command.global_position]],
    ).fetchone()[0]
    read = [
        node["Actual Rows"] * node["Actual Loops"]
        for node in nodes(plan[0]["Plan"])
        if node.get("Relation Name") == "messages"
    ]
    assert read, json.dumps(plan)
    assert sum(read) <= 4


def nodes(plan):
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


@pytest.mark.parametrize("value", [None, "x", -1, {"a": 1}, "9" * 30, 7.5])
@pytest.mark.parametrize("once", BOTH, ids=named)
def test_local_properties_of_others_do_no_harm(connection, store, once, value):
    """Local properties that other clients write into the entity's stream are ignored."""
    store.write(deposit(), PURSE)
    metadata = Metadata(
        causation_message_stream_name=PURSE,
        local_properties={"messageId": value, "sequence": value},
    )
    store.write(Noted(), "purse-123", metadata=metadata)
    assert drained(connection, noting(once)) == {"handled": 1}


# Pseudo events mean nothing to anybody


@dataclass(frozen=True)
class Begin:
    account_id: str
    owner: str = ""


@dataclass(frozen=True)
class Begun:
    account_id: str


def beginning(once, **options):
    component = purse(once, **options)
    component.initiate(Begin)(lambda command, context: Begun(command.account_id))
    component.message(Begun)
    return component


def test_a_stream_of_pseudo_events_is_not_started(connection, store):
    """A stream with nothing but pseudo events can still be initiated."""
    component = beginning(MessageIdInEvents(), snapshot_every=1)
    store.write([withdraw(), Begin("123")], PURSE)
    assert drained(connection, component) == {"handled": 2}
    assert effects(store) == ["Begun"]
    store.write([Begin("123"), Begin("123", "another")], PURSE)
    assert drained(connection, component) == {"duplicate": 1, "conflict": 1}
    store.write(withdraw("w2"), "purse:command-9")
    fresh = beginning(MessageIdInEvents(), snapshot_every=1)
    assert drained(connection, fresh) == {"handled": 1}


def test_a_stream_of_pseudo_events_is_not_started_for_a_later_batch_either(connection, store):
    """A later batch can initiate such a stream too, whatever it has read and cached."""
    for fresh in (False, True):
        stream = f"purse:command-{fresh}"
        component = beginning(MessageIdInEvents(), snapshot_every=1)
        claimed = batch(connection, "purse:command", component)
        store.write(withdraw(account=str(fresh)), stream)
        assert claimed.run(10).counts == Counter(handled=1)
        if fresh:
            claimed = batch(
                connection, "purse:command", beginning(MessageIdInEvents(), snapshot_every=1)
            )
        store.write(Begin(str(fresh)), stream)
        assert claimed.run(10).counts == Counter(handled=1)
        assert effects(store, f"purse-{fresh}") == ["Begun"]


def test_a_snapshot_counts_pseudo_events_as_any_others(connection, store):
    """Pseudo events count as events in the version of a snapshot."""
    component = purse(MessageIdInEvents(), snapshot_every=2)
    store.write([deposit("d1", "10"), withdraw("w1", "99"), deposit("d2", "10")], PURSE)
    drained(connection, component)
    store.write([withdraw("w2", "20")], PURSE)
    assert drained(connection, purse(MessageIdInEvents(), snapshot_every=2)) == {"handled": 1}
    assert effects(store) == ["Deposited", "Deposited", "Withdrawn"]
    assert connection.execute("SELECT count(*) FROM reservation.snapshots").fetchone() == (1,)


def test_a_consumer_passes_pseudo_events_over(connection, store):
    """A consumer counts pseudo events as ignored without a declaration."""
    component = Component("audit", id="account_id")
    component.handle(Deposit)(lambda *_: None)
    store.write_batch([Write(PseudoEvent(), "audit:command-1", id=uuid.uuid4())])
    assert drained(connection, component) == {"ignored": 1}
