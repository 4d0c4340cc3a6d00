"""Rejecting a command: what is stored, and who passes over it."""

import json
import uuid
from dataclasses import replace
from datetime import timedelta

import pytest
from psycopg import errors as pg

from consumers.testing import run_in_memory
from reservation import Component, Context, Reject, Write
from reservation.strategies import MessageIdInEvents, PositionInEvents, Processed, StateBased
from reservation.testing import check_deterministic
from tests.apps.answering import BY_KEY, INTO, LIMIT, SENT, Start, Take, Taken, Till, till
from tests.apps.bank import drain
from tests.consumers.builders import read_again, stored_letter, stored_letters

STRATEGIES = pytest.mark.parametrize(
    "once",
    [None, MessageIdInEvents(), PositionInEvents(), Processed(key="take_id"), StateBased()],
    ids=str,
)


def take(number=1, amount=5):
    """Return a command."""
    return Take(f"t{number}", "1", amount)


def events(store, stream_name="till-1"):
    """Return the types and data of a stream."""
    return [(m.type, json.loads(m.data)) for m in store.read_stream(stream_name)]


@STRATEGIES
def test_a_rejection_is_the_only_effect(store, connection, once):
    """It is one event of the entity, with the command's causation, and nothing else is written."""
    component, command_id = till(once=once), uuid.uuid4()
    store.write(take(1, LIMIT + 1), SENT, id=command_id)
    done = drain(connection, component)
    assert done.counts == {"rejected": 1}
    (stored,) = store.read_stream("till-1")
    assert (stored.type, json.loads(stored.data)) == (
        "PseudoEvent",
        {"rejected": "Take", "reason": f"more than {LIMIT}"},
    )
    in_memory = run_in_memory(component, [Write(take(1, LIMIT + 1), SENT, command_id)])
    assert stored.id == in_memory.messages[-1].id
    assert stored.metadata.causation_message_stream_name == SENT
    assert list(store.read_stream("audit-1")) == []
    assert stored_letters(connection) == []
    assert drain(connection, component).counts == {}


@STRATEGIES
def test_a_rejection_leaves_the_entity_as_it_is(store, connection, once):
    """Commands of one batch before and after it are decided on an entity without it."""
    component = till(once=once)
    store.write([take(1, 5), take(2, LIMIT + 1), take(3, 6)], SENT)
    assert drain(connection, component).counts == {"handled": 2, "rejected": 1}
    assert [type_ for type_, _ in events(store)] == ["Taken", "PseudoEvent", "Taken"]
    if isinstance(once, StateBased):
        rows = connection.execute("SELECT state FROM reservation.states ORDER BY position")
        assert [row[0] for row in rows] == [{"total": 0}] * 3


@pytest.mark.parametrize("options", [INTO, BY_KEY], ids=["entity", "key"])
def test_a_reissue_of_a_rejected_command_is_a_duplicate(store, connection, options):
    """A reservation that was rejected stays reserved: a reissue is a duplicate."""
    component = till(**options)
    for _ in range(3):
        store.write(take(1, LIMIT + 1), SENT)
        drain(connection, component)
    assert len(events(store)) == 1


def test_a_message_that_is_read_again_is_rejected_once(store, connection):
    """A consumer whose position was set back finds the rejection there."""
    component = till(**INTO)
    store.write([take(1, LIMIT + 1), take(2)], SENT)
    drain(connection, component)
    before = events(store)
    read_again(connection)
    done = drain(connection, component)
    assert done.counts["redelivered"] == 2
    assert events(store) == before


def test_a_rejected_initiation_is_final(store, connection):
    """A reissue is a duplicate with the same answer, and other content is a conflict."""
    component, bad = till(), Start("1", "nobody")
    commands = [bad, replace(bad, sent_at=1), replace(bad, owner="Ann")]
    store.write(commands[:2], SENT)
    done = drain(connection, component)
    assert (done.counts["rejected"], done.counts["duplicate"]) == (1, 1)
    store.write(commands, SENT)
    done = drain(connection, component)
    assert (done.counts["duplicate"], done.counts["conflict"]) == (2, 1)
    reason = {"rejected": "Start", "reason": "a till has an owner", "initiation": True}
    assert events(store) == [("PseudoEvent", reason)]
    # Other commands of the entity are handled as if it had not been started.
    store.write(take(1), SENT)
    drain(connection, component)
    assert [type_ for type_, _ in events(store)] == ["PseudoEvent", "Taken"]
    store.write(bad, SENT)
    assert drain(connection, component).counts["duplicate"] == 1
    assert store.outcome(bad, component).reason == "a till has an owner"


def test_an_initiation_after_other_pseudo_events(store, connection):
    """Pseudo events and rejections of other commands do not start a stream; its own does."""
    component = till(once=MessageIdInEvents())
    store.write([take(1, 0), take(2, LIMIT + 1)], SENT)
    drain(connection, component)
    store.write([Start("1", "nobody"), Start("1", "nobody"), Start("1", "Ann")], SENT)
    done = drain(connection, component)
    assert (done.counts["rejected"], done.counts["duplicate"], done.counts["conflict"]) == (1, 1, 1)
    assert len(events(store)) == 3
    store.write(Start("1", "nobody"), SENT)  # with the entity loaded anew
    assert drain(connection, component).counts["duplicate"] == 1


def test_a_rejection_takes_back_what_was_executed_in_a_block(store, connection):
    """What a handler executed in a block that it leaves by rejecting is rolled back."""
    connection.execute("CREATE TABLE notes (take_id text)")
    component = Component("till", id="till_id")

    @component.handle(Take, once=None)
    def handle(command: Take, entity: None, context: Context) -> Taken:
        with context.connection.transaction():
            context.connection.execute("INSERT INTO notes VALUES (%s)", [command.take_id])
            raise Reject("no")

    store.write(take(), SENT)
    assert drain(connection, component).counts == {"rejected": 1}
    assert connection.execute("SELECT count(*) FROM notes").fetchone() == (0,)


def test_a_rejection_after_a_statement_that_failed_is_a_fault(store, connection):
    """A handler that rejects with the transaction failed has not left it sound."""
    component = Component("till", id="till_id", attempts=1)

    @component.handle(Take, once=None)
    def handle(command: Take, entity: None, context: Context) -> Taken:
        try:
            context.connection.execute("SELECT 1 / 0")
        except pg.DivisionByZero as error:
            raise Reject("no") from error
        return Taken("t", "1", 1)

    store.write(take(), SENT)
    assert drain(connection, component).counts == {"dead": 1}
    assert "went on after a statement that failed" in store.outcome(take(), component).reason


def test_a_rejection_without_a_storable_reason_is_a_fault(store, connection):
    """A rejection needs a reason that can be stored; without it the message is a dead letter."""
    reasons = ["", " ", None, 5, "a\0b", "\ud800"]
    component = Component("till", id="till_id", attempts=1)

    @component.handle(Take, once=None)
    def handle(command: Take, entity: None, context: Context) -> Taken:
        raise Reject(reasons[command.amount])

    for n in range(len(reasons)):
        store.write(Take("t", str(n), n), f"till:command-{n}")
    assert drain(connection, component).counts == {"dead": len(reasons)}
    assert list(store.read_category("till")) == []


def test_only_a_handler_rejects(store, connection):
    """What a projector raises is a fault, whatever it is."""
    component = Component("till", entity=Till, id="till_id", attempts=1)
    component.handle(Take, once=None)(lambda command, entity, context: Taken("t", "1", 1))

    @component.project(Taken)
    def reject(entity: Till, event: Taken) -> None:
        raise Reject("no")

    store.write(take(), SENT)
    assert drain(connection, component).counts == {"dead": 1}


def test_a_test_of_a_handler_sees_the_rejection():
    """`check_deterministic` returns the reason, and neither events nor further messages."""
    component = till()
    done = check_deterministic(component, take(1, LIMIT + 1), Till(3))
    assert (done.rejection, done.events, done.context.writes) == (f"more than {LIMIT}", [], [])
    assert done.state == Till(3)
    assert check_deterministic(component, Start("1", "nobody")).rejection == "a till has an owner"
    handled = check_deterministic(component, take())
    assert (handled.rejection, handled.events) == (None, [Taken("t1", "1", 5)])


def test_state_based_rejections_are_published_again_after_a_crash(store, connection):
    """A message that is handled again is rejected again, under the same id."""
    component = till(once=StateBased(window=timedelta(days=1)))
    store.write(take(1, LIMIT + 1), SENT)
    drain(connection, component)
    read_again(connection)
    assert drain(connection, component).counts == {"redelivered": 1}
    assert len(events(store)) == 1


def test_a_rejected_letter_is_handled(store, connection):
    """A dead letter that is handled again and rejected then is a letter no more."""
    component = till(**INTO)
    store.write(take(1, -1), SENT)
    drain(connection, component)
    connection.execute(
        "UPDATE reservation.dead_letters SET state = 'waiting', next_attempt_at = now()"
    )
    fixed = Component("till", entity=Till, id="till_id")
    fixed.message(Taken)

    @fixed.handle(Take, **INTO)
    def handle(command: Take, entity: Till, context: Context) -> Taken:
        raise Reject("too late")

    drain(connection, fixed)
    assert stored_letter(connection).state == "handled"
    assert store.outcome(take(1, -1), fixed).reason == "too late"


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_batches_of_any_size_reject_the_same(store, connection, batch_size):
    """One message at a time, or all at once: the streams are the same."""
    store.write([take(n, LIMIT * (n % 3)) for n in range(1, 9)], SENT)
    counts = drain(connection, till(**INTO), batch_size=batch_size).counts
    assert counts == {"reserved": 8, "handled": 5, "rejected": 3}
    types = [type_ for type_, _ in events(store)]
    assert types == ["Taken", "PseudoEvent"] * 3
