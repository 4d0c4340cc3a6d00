"""Messages known again by what the events say that they brought about."""

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


def named(one):
    return repr(one)


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_a_redelivery_is_a_duplicate(connection, store, once):
    """Its handler is not called, and nothing is written."""
    store.write([deposit("d1"), deposit("d2")], PURSE)
    component = purse(once)
    assert drained(connection, component) == {"handled": 2}
    redeliver(connection)
    calls = []
    component.handlers["Deposit"] = lambda *_: calls.append(1)
    assert drained(connection, component) == {"duplicate": 2}
    assert (calls, effects(store)) == ([], ["Deposited", "Deposited"])


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_each_of_many_messages_of_an_entity_is_known_again(connection, store, once):
    """Not only those of its first event and its last."""
    store.write([deposit(f"d{n}") for n in range(6)], PURSE)
    component = purse(once)
    assert drained(connection, component) == {"handled": 6}
    redeliver(connection)
    assert drained(connection, component) == {"duplicate": 6}


@pytest.mark.parametrize("once", RECORDING, ids=named)
def test_a_message_without_an_event_leaves_a_pseudo_event(connection, store, once):
    """It holds nothing, follows the message, and is the one trace that it was handled."""
    store.write(withdraw(), PURSE, metadata=Metadata(properties={"user": 7}))
    drained(connection, purse(once))
    (event,) = store.read_stream("purse-123")
    assert (event.type, event.data) == ("PseudoEvent", "{}")
    assert event.metadata.causation_message_stream_name == PURSE
    assert event.metadata.properties == {"user": 7}


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_a_batch_may_hold_messages_from_before_and_after_an_event(connection, store, once):
    """The events are looked at from the first message of the entity on."""
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


@pytest.mark.parametrize(("once", "then"), FOUR_STEPS, ids=[repr(one) for one, _ in FOUR_STEPS])
def test_what_had_no_effect_has_none_after_the_state_has_changed(connection, store, once, then):
    """A is handled without an event, B changes the state, A comes again and would take effect."""
    component = purse(once)
    store.write(withdraw(amount="5"), PURSE)  # A
    drained(connection, component)
    assert effects(store) == []
    b = Deposited("d1", "123", deposit().amount, datetime(2026, 1, 1), datetime(2026, 1, 1), 0)  # noqa: DTZ001
    store.write(b, "purse-123")  # by somebody who reads another category
    redeliver(connection)
    drained(connection, component)
    assert effects(store) == ["Deposited", *then]


def test_a_sequence_knows_what_lies_before_a_later_message_of_the_entity(connection, store):
    """A left no number, but B, which was handled after it, did."""
    component = purse(PositionInEvents())
    store.write([withdraw(amount="5"), deposit()], PURSE)
    drained(connection, component)
    redeliver(connection)
    assert drained(connection, component) == {"duplicate": 2}
    assert effects(store) == ["Deposited"]


def test_what_the_events_carry(connection, store):
    """The id, or the global position, of the message; not handed on to what follows them."""
    store.write(deposit(), PURSE)
    (command,) = store.read_stream(PURSE)
    drained(connection, purse(MessageIdInEvents()))
    drained(connection, purse(PositionInEvents(), name="other"))
    store.write(deposit(), "other:command-123")
    (again,) = store.read_stream("other:command-123")
    drained(connection, purse(PositionInEvents(), name="other"))
    (one,), (other,) = store.read_stream("purse-123"), store.read_stream("other-123")
    assert one.metadata.local_properties == {"messageId": command.id}
    assert other.metadata.local_properties == {"sequence": again.global_position}
    assert one.follow_metadata().local_properties == {}


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_a_reissue_under_another_id_is_another_message(connection, store, once):
    """Which `reserve` would see, by the key."""
    store.write([deposit("d1"), deposit("d1")], PURSE)
    assert drained(connection, purse(once)) == {"handled": 2}
    assert effects(store) == ["Deposited", "Deposited"]


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_entities_are_told_from_each_other(connection, store, once):
    """What one has seen says nothing of what another has."""
    component = purse(once)
    store.write([deposit("d1", account="1"), deposit("d2", account="2")], "purse:command-1")
    store.write(deposit("d3", account="1"), "purse:command-1")
    one = batch(connection, "purse:command", component)
    one.run(1)
    redeliver(connection)
    assert drained(connection, component) == {"duplicate": 1, "handled": 2}
    assert (effects(store, "purse-1"), effects(store, "purse-2")) == (
        ["Deposited"] * 2,
        ["Deposited"],
    )


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_components_that_handle_the_same_message_are_told_from_each_other(connection, store, once):
    """Each writes to its own entity, and knows its own handling again."""
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
    """A message of one category says nothing of those of another before it."""
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
def test_a_message_that_is_in_a_batch_twice_is_known_at_once(connection, once):
    """What the first brings about is not written yet when the second is looked at."""
    one = incoming()
    check = once.begin(connection, "purse", "purse:command", [one, one])
    assert not check.is_duplicate(one)
    check.effects(one, [PseudoEvent()], Metadata())
    assert check.is_duplicate(one)
    assert not check.is_duplicate(incoming(stream="purse-456"))
    check.record()


def test_a_sequence_without_an_event_is_not_known_at_once_either(connection):
    """Within a batch it is as it is between batches."""
    one = incoming()
    check = PositionInEvents().begin(connection, "purse", "purse:command", [one, one])
    assert check.effects(one, [], Metadata())[0] == []
    assert not check.is_duplicate(one)


@pytest.mark.parametrize("once", BOTH, ids=named)
def test_it_takes_one_statement_for_a_batch(database_url, once):
    """However many messages and entities it has; and none where there is none."""

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
    """What brought about an event was stored before it, so older events need not be read."""
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
    for one in plan.get("Plans", ()):
        yield from nodes(one)


@pytest.mark.parametrize("value", [None, "x", -1, {"a": 1}, "9" * 30, 7.5])
@pytest.mark.parametrize("once", BOTH, ids=named)
def test_local_properties_of_others_do_no_harm(connection, store, once, value):
    """Other clients write what they like into the entity's stream."""
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
    """A command that initiates starts it, and its reissues are told by what started it."""
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
    """Neither by what was read, nor by what is kept of the entity."""
    for fresh in (False, True):
        stream = f"purse:command-{fresh}"
        component = beginning(MessageIdInEvents(), snapshot_every=1)
        one = batch(connection, "purse:command", component)
        store.write(withdraw(account=str(fresh)), stream)
        assert one.run(10).counts == Counter(handled=1)
        if fresh:
            one = batch(
                connection, "purse:command", beginning(MessageIdInEvents(), snapshot_every=1)
            )
        store.write(Begin(str(fresh)), stream)
        assert one.run(10).counts == Counter(handled=1)
        assert effects(store, f"purse-{fresh}") == ["Begun"]


def test_a_snapshot_counts_pseudo_events_as_any_others(connection, store):
    """What is read again behind one is right, whatever stands between."""
    component = purse(MessageIdInEvents(), snapshot_every=2)
    store.write([deposit("d1", "10"), withdraw("w1", "99"), deposit("d2", "10")], PURSE)
    drained(connection, component)
    store.write([withdraw("w2", "20")], PURSE)
    assert drained(connection, purse(MessageIdInEvents(), snapshot_every=2)) == {"handled": 1}
    assert effects(store) == ["Deposited", "Deposited", "Withdrawn"]
    assert connection.execute("SELECT count(*) FROM reservation.snapshots").fetchone() == (1,)


def test_a_consumer_passes_pseudo_events_over(connection, store):
    """Without being told to, and counts them as ignored."""
    component = Component("audit", id="account_id")
    component.handle(Deposit)(lambda *_: None)
    store.write_batch([Write(PseudoEvent(), "audit:command-1", id=uuid.uuid4())])
    assert drained(connection, component) == {"ignored": 1}
