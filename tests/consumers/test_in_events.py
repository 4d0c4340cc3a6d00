"""Strategies that recognize messages by their events."""

from dataclasses import dataclass
from datetime import datetime

import pytest

from bank.messages import Deposit, Deposited
from reservation import Component, Key, Metadata, Write
from reservation.idempotence.strategy import Incoming
from reservation.store.statements import run
from reservation.strategies import MessageIdInEvents, PositionInEvents
from tests.apps.bank import drain
from tests.apps.idempotence import PURSE, drained, effects, purse, redeliver
from tests.support.controls import deposit, withdraw

RECORDING = [MessageIdInEvents(), PositionInEvents(pseudo_events=True)]
BOTH = pytest.mark.parametrize("once", [MessageIdInEvents(), PositionInEvents()], ids=repr)
PAYMENTS = Key("deposit_id", into="payments", per=None)


@pytest.mark.parametrize("once", RECORDING, ids=repr)
def test_a_message_without_an_event_leaves_a_pseudo_event(connection, store, once):
    """A message without an event leaves an empty pseudo event that follows it."""
    store.write(withdraw(), PURSE, metadata=Metadata(properties={"user": 7}))
    drained(connection, purse(once))
    (event,) = store.read_stream("purse-123")
    assert (event.type, event.data) == ("PseudoEvent", "{}")
    assert event.metadata.causation_message_stream_name == PURSE
    assert event.metadata.properties == {"user": 7}


@pytest.mark.parametrize(
    ("once", "then"),
    [
        *((once, []) for once in RECORDING),
        (PositionInEvents(), ["Withdrawn"]),
        (None, ["Withdrawn"]),
    ],
    ids=repr,
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
    store.write(deposit(), "other:command-123")
    drained(connection, purse(MessageIdInEvents()))
    drained(connection, purse(PositionInEvents(), name="other"))
    (command,), (other,) = store.read_stream(PURSE), store.read_stream("other:command-123")
    (event,), (second,) = store.read_stream("purse-123"), store.read_stream("other-123")
    assert event.metadata.local_properties == {"messageId": command.id}
    assert second.metadata.local_properties == {"sequence": other.global_position}
    assert event.follow_metadata().local_properties == {}


@BOTH
def test_a_reissue_under_another_id_is_another_message(connection, store, once):
    """A reissue under another id is another message; only a key recognizes it."""
    store.write([deposit("d1"), deposit("d1")], PURSE)
    assert drained(connection, purse(once)) == {"handled": 2}
    assert effects(store) == ["Deposited", "Deposited"]


@BOTH
def test_entities_are_distinguished(connection, store, once):
    """What one entity has handled is no duplicate for another."""
    component = purse(once)
    store.write(deposit("d1", account="1"), "purse:command-1")
    drained(connection, component)
    store.write([deposit("d2", account="2"), deposit("d3", account="1")], "purse:command-1")
    redeliver(connection)
    assert drained(connection, component) == {"duplicate": 1, "handled": 2}
    assert effects(store, "purse-1") == ["Deposited"] * 2
    assert effects(store, "purse-2") == ["Deposited"]


@BOTH
def test_components_that_handle_the_same_message_are_distinguished(connection, store, once):
    """Two components each recognize their own handling of a message."""
    components = [purse(once, name=name, add_key=PAYMENTS) for name in ("purse", "points")]
    store.write(deposit(), PURSE)
    assert drained(connection, components[0]) == {"reserved": 1, "handled": 1}
    assert drained(connection, components[1]) == {"handled": 1}
    connection.execute("UPDATE reservation.moves SET position = 0 WHERE category = 'payments'")
    for component in components:
        assert drained(connection, component) == {"duplicate": 1}
    assert effects(store, "points-123") == effects(store) == ["Deposited"]


def test_a_sequence_is_kept_for_each_category_that_messages_come_from(connection, store):
    """A copy that lies before a command that was handled first is handled too."""
    component = purse(PositionInEvents(), add_key=PAYMENTS)
    store.write(deposit("d1", "100"), PURSE)
    drained(connection, component)
    store.write(deposit("d2", "100"), PURSE)
    drained(connection, component)
    connection.execute(  # its copy is still to be handled
        "DELETE FROM message_store.messages WHERE stream_name = 'purse-123' AND position = 1;"
        "UPDATE reservation.moves SET position = position - 1 WHERE category = 'payments'"
    )
    store.write(withdraw(amount="5"), PURSE)
    assert drained(connection, component) == {"handled": 2}
    assert effects(store) == ["Deposited", "Withdrawn", "Deposited"]


@dataclass(frozen=True)
class Noted:
    """An event that others write."""


@BOTH
def test_a_stream_is_read_no_further_back_than_the_message(connection, store, once):
    """Events older than the first message of the batch are not read."""
    store.write_batch([Write(Noted(), "purse-123") for n in range(500)])
    store.write(deposit("d1"), PURSE)
    component = purse(once)
    component.message(Noted)
    drained(connection, component)
    (command,) = store.read_stream(PURSE)
    incoming = Incoming(command, deposit("d1"), "purse-123")
    with connection.transaction():
        before = fetched(connection)
        check = run(connection, once.look("purse", "purse:command", [incoming]))
        assert 0 < fetched(connection) - before <= 4
    assert check.is_duplicate(incoming)


def fetched(connection):
    """Return how many messages were read in this transaction, by an index or not."""
    return connection.execute(
        "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables"
        " WHERE relid = 'message_store.messages'::regclass"
    ).fetchone()[0]


VALUES = [None, "x", -1, {"a": 1}, "9" * 30, 7.5]


@BOTH
def test_local_properties_of_others_do_no_harm(connection, store, once):
    """Local properties that other clients write into the entity's stream are ignored."""
    for n, value in enumerate(VALUES):
        sent = f"purse:command-{n}"
        store.write(deposit(account=str(n)), sent)
        metadata = Metadata(
            causation_message_stream_name=sent,
            local_properties={"messageId": value, "sequence": value},
        )
        store.write(Noted(), f"purse-{n}", metadata=metadata)
    component = purse(once)
    component.message(Noted)
    assert drained(connection, component) == {"handled": len(VALUES)}
    found = {repr(value): effects(store, f"purse-{n}")[1:] for n, value in enumerate(VALUES)}
    assert found == {repr(value): ["Deposited"] for value in VALUES}


# Pseudo events mean nothing to anybody


@dataclass(frozen=True)
class Begin:
    account_id: str
    owner: str = ""


@dataclass(frozen=True)
class Begun:
    account_id: str


def beginning():
    component = purse(MessageIdInEvents(), snapshot_every=1)
    component.initiate(Begin)(lambda command, context: Begun(command.account_id))
    component.message(Begun)
    return component


@pytest.mark.parametrize("limit", [1, 100])
def test_a_stream_of_pseudo_events_is_not_started(connection, store, limit):
    """A stream with nothing but pseudo events can still be initiated, whatever is cached of it."""
    store.write([withdraw(), Begin("123")], PURSE)
    assert drain(connection, beginning(), batch_size=limit).counts == {"handled": 2}
    assert effects(store) == ["Begun"]
    store.write([Begin("123"), Begin("123", "another")], PURSE)
    assert drained(connection, beginning()) == {"duplicate": 1, "conflict": 1}


def test_a_stream_of_pseudo_events_is_not_started_for_a_new_consumer_either(connection, store):
    """It reads a snapshot of such a stream."""
    for command in (withdraw(), Begin("123")):
        store.write(command, PURSE)
        assert drained(connection, beginning()) == {"handled": 1}
    assert effects(store) == ["Begun"]


def test_a_snapshot_counts_pseudo_events_as_any_others(connection, store):
    """Pseudo events count as events in the version of a snapshot."""
    component = purse(MessageIdInEvents(), snapshot_every=2)
    store.write([deposit("d1", "10"), withdraw("w1", "99"), deposit("d2", "10")], PURSE)
    drained(connection, component)
    store.write([withdraw("w2", "20")], PURSE)
    assert drained(connection, component) == {"handled": 1}
    assert effects(store) == ["Deposited", "Deposited", "Withdrawn"]
    assert connection.execute("SELECT count(*) FROM reservation.snapshots").fetchone() == (1,)


def test_a_consumer_passes_pseudo_events_over(connection, store):
    """A consumer counts pseudo events as ignored without a declaration."""
    component = Component("audit", id="account_id")
    component.handle(Deposit, once=None)(lambda *_: None)
    connection.execute(
        "SELECT message_store.write_message("
        "gen_random_uuid()::varchar, 'audit:command-1', 'PseudoEvent', '{}')"
    )
    assert drained(connection, component) == {"ignored": 1}
