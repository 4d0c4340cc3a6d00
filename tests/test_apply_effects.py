"""Applying what was planned: events, reservations, outcomes, what strategies remember."""

import uuid

import pytest

from bank.messages import Deposit, Deposited
from consumers.batch.effects import BatchEffects
from consumers.decisions.decisions import Decisions
from consumers.runtime.context import ConsumerContext
from reservation import Component, Processed
from reservation.entity.projection import Loaded
from reservation.errors import (
    ExpectedVersionError,
    HandlerError,
    MessageError,
    MessageIdConflictError,
)
from reservation.idempotence.strategy import Incoming
from reservation.store.writing.write import Row
from tests.controls import deposit
from tests.idempotence import Purse, purse

COMMANDS = "purse:command"
SENT = "purse:command-123"


def apply(connection, store, component, decisions, messages=(), careful=False):
    """Apply decisions in a transaction of their own."""
    snapshots = component.snapshots(connection)
    effects = BatchEffects(ConsumerContext.of(connection, component, COMMANDS), snapshots)
    with connection.transaction():
        effects.apply(store, decisions, messages, careful=careful)


def event(version=None, stream="purse-1", id_=None):
    return Row(id_ or uuid.uuid4(), stream, "Deposited", '{"amount":1}', None, version)


def sent(store, *commands):
    """Write commands, and return them as they are stored."""
    store.write(list(commands), SENT)
    return list(store.read_stream(SENT))


def test_events_are_written_where_they_were_decided(connection, store):
    """Events are written at the version at which their entity was read."""
    apply(connection, store, purse(), Decisions(writes=[event(-1), event(0)]))
    assert [message.position for message in store.read_stream("purse-1")] == [0, 1]


def test_another_writer_was_first(connection, store):
    """If another writer was first, nothing is written and the batch is run again."""
    store.write_encoded([event()])
    with pytest.raises(ExpectedVersionError):
        apply(connection, store, purse(), Decisions(writes=[event(-1, "purse-2"), event(-1)]))
    assert store.stream_version("purse-2") == -1


def test_an_event_that_was_written_before_is_not_where_it_was_decided(connection, store):
    """An event that was already written makes the batch run again with care."""
    first = event()
    store.write_encoded([first])
    again = event(0, id_=first.id)
    with pytest.raises(MessageIdConflictError, match="was written before, at 0"):
        apply(connection, store, purse(), Decisions(writes=[again]))


def test_a_further_message_that_was_written_before_is_refused(connection, store):
    """A further message that was already written is refused, or its handler would act twice."""
    further = event(stream="audit-1")
    store.write_encoded([further])
    with pytest.raises(MessageIdConflictError):
        apply(connection, store, purse(), Decisions(writes=[further], further=[further]))


@pytest.mark.parametrize(("conditional", "error"), [(False, ExpectedVersionError), (True, None)])
def test_with_care_a_wrong_version_is_a_fault_of_its_handler(connection, store, conditional, error):
    """With care, a wrong expected version is a failure of the handler that gave it."""
    store.write_encoded([event()])
    decisions = Decisions(writes=[event(-1)], conditional=conditional)
    messages = sent(store, deposit())
    with pytest.raises(error or HandlerError):
        apply(connection, store, purse(), decisions, messages, careful=True)


def test_with_care_an_id_that_is_in_use_is_a_fault_of_the_message(connection, store):
    """With care, an id that is in use is a failure of the message: a retry would meet it again."""
    taken = event(stream="other-1")
    store.write_encoded([taken])
    messages = sent(store, deposit())
    with pytest.raises(MessageError, match="Cannot write what the handling of Deposit"):
        apply(connection, store, purse(), Decisions(writes=[event(id_=taken.id)]), messages, True)


def test_reservations_are_counted_by_their_outcomes(connection, store):
    """A command is counted as reserved, duplicate or conflict; a conflict is a dead letter too."""
    component = purse()
    component.reserve(Deposit, into="sales", key="deposit_id")
    commands = sent(store, deposit("d1", "1"), deposit("d1", "1"), deposit("d1", "2"))
    decisions = Decisions(reservations=[(command, "sales-d1") for command in commands])
    apply(connection, store, component, decisions, commands)
    assert decisions.counts == {"reserved": 1, "duplicate": 1, "conflict": 1}
    assert [letter.message for letter in decisions.letters] == [commands[2]]
    assert store.stream_version("sales-d1") == 0


def test_records_of_strategies_are_committed_with_the_effects(connection, store):
    """What strategies record is committed with the events, or not at all."""
    component, strategy = purse(), Processed()
    messages = sent(store, deposit())
    batch = [Incoming(messages[0], deposit(), "purse-123")]

    def remembered():
        with connection.transaction():
            check = strategy.begin(connection, "purse", COMMANDS, batch)
            return check.is_duplicate(batch[0])

    def decided(writes):
        check = strategy.begin(connection, "purse", COMMANDS, batch)
        check.is_duplicate(batch[0])
        return Decisions(writes=writes, checks={strategy: check})

    with pytest.raises(ExpectedVersionError), connection.transaction():
        apply(connection, store, component, decided([event(7)]))
    assert not remembered()
    apply(connection, store, component, decided([event(-1)]))
    assert remembered()


def test_a_snapshot_is_taken_of_an_entity_that_is_due(connection, store):
    """A snapshot is written with the events that make it due."""
    component = purse(snapshot_every=2)
    writes = [event(-1), event(0)]
    loaded = Loaded(Purse(), version=1, started=True)
    apply(connection, store, component, Decisions(writes=writes, entities={"purse-1": loaded}))
    assert connection.execute("SELECT count(*) FROM reservation.snapshots").fetchone() == (1,)


def test_a_component_without_an_entity_has_no_snapshots(connection, store):
    """A component without an entity has no snapshots."""
    component = Component("purse", id="account_id")
    component.handle(Deposit)(lambda *_: Deposited)
    apply(connection, store, component, Decisions(writes=[event(-1)]))
    assert store.stream_version("purse-1") == 0
