"""What became of a command: each state, for each way to be idempotent."""

import uuid
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from bank import account
from reservation import Component, Key, Metadata, StoredMessage, Write
from reservation.errors import IdempotenceKeyError, StoreError, UnknownTypeError
from reservation.strategies import MessageIdInEvents, PositionInEvents, Processed, StateBased
from tests.apps.answering import (
    BY_FUNCTION,
    BY_KEY,
    INTO,
    LIMIT,
    SENT,
    Start,
    Started,
    Take,
    Taken,
    reserved,
    taking,
    till,
)
from tests.apps.bank import drain
from tests.consumers.builders import retry_all
from tests.support.commands import invoke_cli
from tests.support.controls import withdraw
from tests.support.started import EXAMPLES

RESERVING = pytest.mark.parametrize(
    "options", [INTO, BY_KEY, BY_FUNCTION], ids=["into", "by key", "by function"]
)
STRATEGIES = pytest.mark.parametrize(
    "once",
    [
        MessageIdInEvents(),
        PositionInEvents(pseudo_events=True),
        PositionInEvents(),
        Processed(),
        Processed(key="take_id"),
        Processed(key=lambda command: command.take_id, keep=timedelta(days=1)),
        StateBased(),
        None,
    ],
    ids=str,
)


def take(number=1, amount=5, **values):
    """Return a command."""
    return Take(f"t{number}", "1", amount, **values)


def check_states(store, connection, component):
    """Follow commands of every kind from before they are sent to after they are handled."""
    commands = {
        "handled": take(1),
        "handled without": take(2, 0),
        "rejected": take(3, LIMIT + 1),
        "dead": replace(take(4, -1), till_id="2"),
    }
    for command in commands.values():
        assert store.outcome(command, component).state == "unknown"
    for command in commands.values():
        store.write(command, f"till:command-{command.till_id}")
    for command in commands.values():
        pending = store.outcome(command, component)
        assert (pending.state, pending.is_settled) == ("pending", False)
        assert component.decode(pending.message) == command
    drain(connection, component)
    for _ in range(2):
        handled = store.outcome(commands["handled"], component)
        assert (handled.state, handled.reason) == ("handled", None)
        assert handled.events == (Taken("t1", "1", 5),)
        assert [event.type for event in handled.stored_events] == ["Taken"]
        without = store.outcome(commands["handled without"], component)
        assert (without.state, without.events) == ("handled", ())
        rejected = store.outcome(commands["rejected"], component)
        assert (rejected.state, rejected.events) == ("rejected", ())
        assert rejected.reason == f"more than {LIMIT}"
        dead = store.outcome(commands["dead"], component)
        assert dead.state == "dead"
        assert "raised ValueError" in dead.reason
        assert all(store.outcome(command, component).is_settled for command in commands.values())
        # Sent again it is the same.
        store.write(replace(commands["handled"], sent_at=1), SENT)
        drain(connection, component)


@RESERVING
def test_each_state_of_a_reserved_command(store, connection, options):
    """A reserved command goes from unknown through pending to what it comes to, and stays there."""
    component = till(**options)
    check_states(store, connection, component)
    other = replace(take(1), amount=6)
    conflict = store.outcome(other, component)
    assert (conflict.state, conflict.events) == ("conflict", ())
    assert component.decode(conflict.message) == take(1)
    store.write(other, SENT)
    drain(connection, component)
    assert store.outcome(other, component) == conflict
    assert store.outcome(replace(take(1), sent_at=7), component).state == "handled"


@STRATEGIES
def test_each_state_of_a_command_that_is_handled_directly(store, connection, once):
    """So does a command with any strategy, or none."""
    check_states(store, connection, till(once=once))


def test_each_state_of_a_command_that_initiates(store, connection):
    """A command that starts a stream is handled, rejected, or in conflict with what started it."""
    component = till()
    good, bad = Start("1", "Ann"), Start("2", "nobody")
    assert store.outcome(good, component).state == "unknown"
    store.write(good, SENT)
    store.write(bad, "till:command-2")
    assert store.outcome(good, component).state == "pending"
    drain(connection, component)
    assert store.outcome(good, component).events == (Started("1", "Ann"),)
    assert store.outcome(replace(good, sent_at=3), component).state == "handled"
    conflict = store.outcome(replace(good, owner="Bob"), component)
    assert (conflict.state, component.decode(conflict.message)) == ("conflict", good)
    rejected = store.outcome(bad, component)
    assert (rejected.state, rejected.reason) == ("rejected", "a till has an owner")
    assert store.outcome(replace(bad, owner="Ann"), component).state == "conflict"


def test_by_key_and_type(store, connection):
    """Who knows only the key asks with the class; every strategy with a key can be asked."""
    for options in (INTO, BY_KEY, BY_FUNCTION, {"once": Processed(key="take_id")}):
        connection.execute("TRUNCATE message_store.messages")
        connection.execute("TRUNCATE reservation.leases, reservation.moves, reservation.groups")
        connection.execute("TRUNCATE reservation.processed_messages")
        component = till(**options)
        question = component.question(Take, key="t1", entity="1")
        assert store.outcome(question).state == "unknown"
        store.write(take(1), SENT)
        expected = "unknown" if options is BY_FUNCTION else "pending"  # until it is reserved
        assert store.outcome(question).state == expected
        drain(connection, component)
        assert store.outcome(question, component).events == (Taken("t1", "1", 5),)
        if options is BY_KEY or options is BY_FUNCTION:  # the copy tells its entity
            assert store.outcome(component.question(Take, key="t1")).events == (
                Taken("t1", "1", 5),
            )
    component = till()
    store.write(Start("2", "Ann"), "till:command-2")
    assert store.outcome(component.question(Start, key="2")).state == "pending"
    assert store.outcome(component.question(Start, entity="2")).state == "pending"


def test_by_key_where_another_field_leads_the_streams(store, connection):
    """`entity` is its value then, and not the id of the entity."""
    component = till(**taking(per="amount"))
    question = component.question(Take, key="t1", entity=5, stream_name=SENT)
    store.write(take(1), SENT)
    assert store.outcome(question).state == "pending"
    assert store.outcome(component.question(Take, key="t1", entity=5)).state == "unknown"
    drain(connection, component)
    for asked in (question, component.question(Take, key="t1", entity=5)):
        assert store.outcome(asked).events == (Taken("t1", "1", 5),)


def test_by_the_id_of_the_message(store, connection):
    """With its id a command is found among others that say the same, in any stream."""
    component, ids = till(once=MessageIdInEvents()), [uuid.uuid4(), uuid.uuid4()]
    store.write_batch([Write(take(1), "till:command-9", id=one) for one in ids])
    drain(connection, component)
    for one in ids:
        found = store.outcome(component.question(take(1), message_id=one))
        assert found.message.id == str(one)
        assert found.stored_events[0].metadata.local_properties == {"messageId": str(one)}
    assert store.outcome(take(1), component).state == "unknown"  # in its own stream it is not
    elsewhere = component.question(take(1), stream_name="till:command-9")
    assert store.outcome(elsewhere).message.id == str(ids[0])
    assert store.outcome(component.question(Take, message_id=uuid.uuid4())).state == "unknown"


@pytest.mark.parametrize(
    ("options", "arguments", "problem"),
    [
        (INTO, {"key": "k"}, "give entity=, the till_id that leads its streams"),
        (INTO, {"entity": "1"}, "give key=, its take_id"),
        (INTO, {"key": ("a", "b"), "entity": "1"}, "give key= with 1 parts: take_id"),
        (INTO, {"key": "", "entity": "1"}, "key= is empty"),
        ({}, {"entity": "1"}, "it has no key; give message_id="),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(options, arguments, problem):
    """A question that names no stream is refused, and the error says what is missing."""
    with pytest.raises(IdempotenceKeyError, match=problem):
        till(**options).question(Take, **arguments)


def test_a_question_about_another_component_is_refused(store):
    """A command that the component does not handle, and a command without a component."""
    with pytest.raises(UnknownTypeError, match="does not handle it"):
        store.outcome(Taken("t", "1", 1), till())
    with pytest.raises(StoreError, match="pass its component too"):
        store.outcome(take())
    with pytest.raises(IdempotenceKeyError, match="field take_id is empty"):
        store.outcome(Take("", "1", 1), till(**INTO))


def test_the_events_are_those_of_the_command_alone(store, connection):
    """In a long stream a command's events are found among all others, and nothing else."""
    component = till(**INTO)
    store.write([take(n, n) for n in range(1, 80)], SENT)
    drain(connection, component)
    for n in (1, 2, 40, 79):
        assert store.outcome(take(n, n), component).events == (Taken(f"t{n}", "1", n),)


@dataclass(frozen=True)
class Grab:
    take_id: str
    till_id: str


@dataclass(frozen=True)
class Grabbed:
    take_id: str


@dataclass(frozen=True)
class Hidden:
    take_id: str


def test_events_are_decoded_as_far_as_their_classes_are_known(store, connection):
    """By return annotations and `message`; another event stays as it is stored."""

    def grabbing(annotated):
        component = Component("till", id="till_id")

        def grab(command, entity, context) -> list[Grabbed | Hidden]:
            return [Grabbed(command.take_id), Hidden(command.take_id)]

        grab.__annotations__ = {"return": annotated} if annotated else {}
        component.handle(Grab, once=None)(grab)
        return component

    first = grabbing(list[Grabbed])
    store.write(Grab("g", "1"), SENT)
    drain(connection, first)
    grabbed, hidden = store.outcome(Grab("g", "1"), first).events
    assert grabbed == Grabbed("g")
    assert isinstance(hidden, StoredMessage)
    assert store.outcome(Grab("g", "1"), first).events_of(Grabbed) == (Grabbed("g"),)
    assert store.outcome(Grab("g", "1"), first).events_of(Hidden) == ()
    unknown = grabbing(None)
    assert [event.type for event in store.outcome(Grab("g", "1"), unknown).events] == [
        "Grabbed",
        "Hidden",
    ]
    unknown.message(Grabbed, Hidden)
    assert store.outcome(Grab("g", "1"), unknown).events == (Grabbed("g"), Hidden("g"))


def test_a_parked_command_is_pending(store, connection):
    """A command that waits behind a dead letter is pending, and so is one to be retried."""
    component = till(**INTO)
    store.write([take(1, -1), take(2)], SENT)
    drain(connection, component)
    assert store.outcome(take(1, -1), component).state == "dead"
    assert store.outcome(take(2), component).state == "pending"
    retry_all(connection)
    assert store.outcome(take(1, -1), component).state == "pending"
    connection.execute(
        "UPDATE reservation.dead_letters SET state = 'discarded', next_attempt_at = NULL"
    )
    assert store.outcome(take(1, -1), component).state == "dead"


def test_a_corrected_command_is_that_of_its_sender_too(store, connection, database_url):
    """What was sent and what it was handled with have both been handled."""
    component = till(**INTO)
    store.write(take(1, -1), SENT)
    drain(connection, component)
    ((letter,),) = connection.execute("SELECT global_position FROM reservation.dead_letters")
    assert not store.outcome(take(1, -1), component).corrected
    done = invoke_cli(
        *("dead-letters", "retry", str(letter), "--data", "-", "--reason", "a wrong sign"),
        env={"RESERVATION_DATABASE_URL": database_url},
        input='{"takeId": "t1", "tillId": "1", "amount": 3}',
    )
    assert done.returncode == 0, done.stderr
    drain(connection, component)
    for command in (take(1, -1), take(1, 3)):
        outcome = store.outcome(command, component)
        assert (outcome.state, outcome.events) == ("handled", (Taken("t1", "1", 3),))
        assert outcome.corrected
    assert store.outcome(take(1, 4), component).state == "conflict"


def test_a_pruned_reservation_is_answered_from_its_events(store, connection, database_url):
    """Events outlive the reservation; what left none has expired."""
    component = reserved
    store.write([take(1), take(2, 0), take(3, LIMIT + 1)], SENT)
    drain(connection, component)
    store.write(take(4), SENT)  # the last reservation stays, because the consumer stands there
    drain(connection, component)
    connection.execute("UPDATE message_store.messages SET time = time - interval '2 days'")
    done = invoke_cli(
        *("prune", "tests.apps.answering:reserved", "--reservations-older-than", "1d", "--apply"),
        env={"RESERVATION_DATABASE_URL": database_url},
        cwd=EXAMPLES.parent,
    )
    assert "3 streams removed" in done.stdout, done
    assert store.outcome(take(1), component).events == (Taken("t1", "1", 5),)
    assert store.outcome(take(2, 0), component).state == "expired"
    assert store.outcome(take(3, LIMIT + 1), component).reason == f"more than {LIMIT}"
    assert store.outcome(take(4), component).state == "handled"
    assert store.outcome(take(5), component).state == "unknown"


@pytest.mark.parametrize("options", [INTO, {"once": Processed(key="take_id")}, {}], ids=str)
def test_a_command_that_was_moved_to_an_archive_is_answered(store, connection, options):
    """What remains of a command without its message answers for it."""
    component, one = till(**options), uuid.uuid4()
    store.write(take(1), SENT, id=one)
    store.write(Start("2", "Ann"), "till:command-2")
    drain(connection, component)
    connection.execute(
        "DELETE FROM message_store.messages WHERE stream_name = ANY(%s)",
        [[SENT, "till:command-2"]],
    )
    question = component.question(take(1), message_id=one)
    assert store.outcome(question).events == (Taken("t1", "1", 5),)
    assert store.outcome(Start("2", "Ann"), component).events == (Started("2", "Ann"),)


def test_what_a_strategy_has_forgotten_is_expired(store, connection):
    """Without an event, and beyond what the strategy keeps, it is not known what became of it."""
    component = till(once=Processed(key="take_id", keep=timedelta(days=1)))
    store.write([take(1), take(2, 0)], SENT)
    drain(connection, component)
    connection.execute("DELETE FROM reservation.processed_messages")
    connection.execute("UPDATE reservation.processed_handlers SET dropped_until = 'infinity'")
    assert store.outcome(take(1), component).state == "handled"
    assert store.outcome(take(2, 0), component).state == "expired"


def test_states_that_were_removed_are_expired(store, connection):
    """So it is with states that were removed after their window."""
    component = till(once=StateBased(window=timedelta(days=1)))
    store.write([take(1), take(2, 0)], SENT)
    drain(connection, component)
    assert store.outcome(take(2, 0), component).state == "handled"
    connection.execute("DELETE FROM reservation.states")
    connection.execute(
        """INSERT INTO reservation.state_horizons VALUES ('till:state-1', '{"till:command": 99}')"""
    )
    assert store.outcome(take(1), component).state == "handled"
    assert store.outcome(take(2, 0), component).state == "expired"


@dataclass(frozen=True)
class Receive:
    take_id: str
    till_id: str
    amount: int


def test_renamed_types_and_former_keys(store, connection):
    """A command that was sent under a former name, or reserved under a former key, is found."""
    former = till(**BY_KEY)
    store.write(take(1), SENT)
    drain(connection, former)
    component = Component("till", id="till_id")
    component.message(Taken)
    component.message(Receive, former_names="Take")

    @component.handle(Receive, key=Key("take_id", into="tillTaking", former_key="take_id"))
    def receive(command, entity, context):
        return context.follow(command, Taken)

    assert store.outcome(Receive("t1", "1", 5), component).events == (Taken("t1", "1", 5),)
    assert store.outcome(component.question(Receive, key="t1", entity="1")).state == "handled"
    conflict = store.outcome(Receive("t1", "1", 6), component)
    assert (conflict.state, conflict.message.type) == ("conflict", "Take")


def test_a_copy_that_no_command_led_to_is_not_shown(store, connection):
    """What stands under the key and follows from another category, or says something else, is no
    reservation of the command.
    """
    component = till(**INTO)
    store.write(take(1), SENT)
    follows = Metadata(
        causation_message_stream_name=SENT,
        causation_message_position=0,
        causation_message_global_position=1,
    )
    store.write(take(1, 7), "tillTaking-1+t1", metadata=follows)
    assert store.outcome(take(1), component).state == "pending"
    elsewhere = replace(follows, causation_message_stream_name="other-1")
    store.write(take(2), "tillTaking-1+t2", metadata=elsewhere)
    assert store.outcome(take(2), component).state == "unknown"


def test_an_outcome_is_the_same_after_the_consumer_begins_anew(store, connection):
    """Positions that are set back change nothing of what left an event."""
    component = till(**INTO)
    store.write([take(1), take(2, LIMIT + 1)], SENT)
    drain(connection, component)
    before = [store.outcome(command, component) for command in (take(1), take(2, LIMIT + 1))]
    connection.execute("UPDATE reservation.moves SET position = 0, message_id = NULL")
    after = [store.outcome(command, component) for command in (take(1), take(2, LIMIT + 1))]
    assert after == before
    drain(connection, component)
    assert [store.outcome(one, component) for one in (take(1), take(2, LIMIT + 1))] == before


def test_the_published_example_can_be_asked(store):
    """A declaration without any word about answers answers."""
    assert store.outcome(withdraw(), account).state == "unknown"
