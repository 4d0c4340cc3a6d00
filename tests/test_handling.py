"""Planning a batch: what is decided on its messages, before anything is written."""

import pytest

from bank.messages import Deposit, Open, Opened
from consumers.dead_letters.corrections import Corrections
from consumers.dead_letters.failure import Failure, Reason
from consumers.decisions.blocking import ALL_OR_NOTHING, FailurePolicy
from consumers.handling.handling import Handling
from consumers.runtime.context import ConsumerContext
from reservation import Component, Processed, StateBased
from reservation.errors import DecodeError, HandlerError
from tests.controls import deposit, open_, stored, withdraw
from tests.idempotence import Purse, key_of, purse

COMMANDS = "purse:command"
SENT = "purse:command-123"


def plan(connection, store, component, messages, category=COMMANDS, **options):
    """Plan messages as a batch of the component would."""
    handling = new_handling(
        ConsumerContext.of(connection, component, category), component.snapshots(connection)
    )
    return run(connection, store, handling, messages, **options)


def run(connection, store, handling, messages, careful=False, policy=ALL_OR_NOTHING):
    key_streams = [None] * len(messages)
    with connection.transaction():
        return handling.plan(store, messages, key_streams, {}, careful=careful, policy=policy)


def new_handling(context, snapshots=None):
    """Return what decides on the messages of a consumer."""
    return Handling(
        context, snapshots, Corrections(context.component.name, context.category, {}), 1 << 20
    )


def sent(store, *commands):
    """Write commands, and return them as they are read."""
    store.write(list(commands), SENT)
    return list(store.read_category(COMMANDS))


def test_nothing_is_written(connection, store):
    """Planning writes neither events nor the position; the plan holds the events."""
    messages = sent(store, deposit("d1", "10"), deposit("d2", "5"))
    decisions = plan(connection, store, purse(), messages)
    assert [row.type for row in decisions.writes] == ["Deposited", "Deposited"]
    assert [row.expected_version for row in decisions.writes] == [-1, 0]
    assert decisions.counts == {"handled": 2}
    assert store.stream_version("purse-123") == -1


def test_later_messages_are_decided_on_earlier_events(connection, store):
    """An entity is loaded once for a batch, and later decisions see earlier events."""
    messages = sent(store, deposit("d1", "10"), withdraw("w1", "4"), withdraw("w2", "7"))
    decisions = plan(connection, store, purse(), messages)
    assert [row.type for row in decisions.writes] == ["Deposited", "Withdrawn"]
    assert decisions.entities["purse-123"].entity.balance == 6


def test_decisions_that_were_not_written_are_forgotten(connection, store):
    """After a batch that was not written, entities are read again."""
    messages = sent(store, deposit("d1", "10"))
    component = purse()
    handling = new_handling(ConsumerContext.of(connection, component, COMMANDS))
    run(connection, store, handling, messages)
    handling.forget()
    decisions = run(connection, store, handling, messages)
    assert [row.expected_version for row in decisions.writes] == [-1]


def test_the_messages_at_hand_are_named_until_they_are_committed(connection, store):
    """The messages being handled can be named until they are committed or fail."""
    component = Component("purse", id="account_id")

    @component.handle(Deposit)
    def handle(command, entity, context):
        raise ValueError

    messages = sent(store, deposit())
    handling = new_handling(ConsumerContext.of(connection, component, COMMANDS))
    assert handling.at_hand == ()
    with pytest.raises(HandlerError):
        run(connection, store, handling, messages)
    assert handling.at_hand == messages


def test_each_handler_call_is_a_heartbeat(connection, store):
    """Each call of a handler is a heartbeat, so a batch may take long."""
    beats, component = [], purse()
    context = ConsumerContext.of(connection, component, COMMANDS)
    context = ConsumerContext(connection, component, COMMANDS, context.log, lambda: beats.append(1))
    messages = sent(store, deposit("d1"), deposit("d2"))
    run(connection, store, new_handling(context), messages)
    assert len(beats) == 2


def test_a_command_that_initiates_finds_a_stream_that_was_started(connection, store):
    """A command that initiates finds a stream that was started, also in the same batch."""
    component = Component("purse", entity=Purse, id="account_id")
    component.message(Opened)

    @component.initiate(Open)
    def begin(command, context):
        return context.follow(command, Opened, processed_time=context.time)

    decisions = plan(connection, store, component, sent(store, open_(), open_()))
    assert [row.type for row in decisions.writes] == ["Opened"]
    assert [name for _, name in decisions.reissued] == ["purse-123"]


def test_a_reserved_command_is_not_handled(connection, store):
    """A reserved command is planned to be copied to the stream of its key."""
    component = purse()
    component.reserve(Deposit, into="sales", key="deposit_id")
    decisions = plan(connection, store, component, sent(store, deposit("d1"), deposit("d2")))
    assert [name for _, name in decisions.reservations] == ["sales-d1", "sales-d2"]
    assert (decisions.writes, decisions.counts) == ([], {})


def test_what_a_strategy_recognizes_is_a_duplicate(connection, store):
    """A message that the strategy recognizes is a duplicate, also within a batch."""
    component = purse(Processed(key=key_of))
    messages = sent(store, deposit("d1"), deposit("d1"), deposit("d2"))
    decisions = plan(connection, store, component, messages)
    assert decisions.counts == {"handled": 2, "duplicate": 1}


def test_a_pseudo_event_of_another_component_is_ignored(connection, store):
    """Pseudo events of another component are ignored, as are types declared with `ignore`."""
    component = purse()
    component.ignore("Open")
    assert plan(connection, store, component, sent(store, open_())).counts == {"ignored": 1}


def test_with_care_a_message_that_was_handled_is_passed(connection, store):
    """With care, a message whose first event is in the entity's stream is redelivered."""
    component, messages = purse(), sent(store, deposit("d1", "10"), deposit("d2", "5"))
    first = plan(connection, store, component, messages[:1])
    store.write_encoded(first.writes)
    decisions = plan(connection, store, component, messages, careful=True)
    assert decisions.counts == {"redelivered": 1, "handled": 1}
    assert [row.expected_version for row in decisions.writes] == [0]


def test_with_care_a_message_without_events_is_recognized_by_what_it_wrote(connection, store):
    """With care, a message is recognized by its written messages and its handler rolled back."""
    component = Component("purse", id="account_id")

    @component.handle(Deposit)
    def handle(command, entity, context):
        context.connection.execute("CREATE TABLE IF NOT EXISTS calls (n int)")
        context.connection.execute("INSERT INTO calls VALUES (1)")
        context.write(command, "audit-1")

    messages = sent(store, deposit())
    first = plan(connection, store, component, messages)
    store.write_encoded(first.writes)
    decisions = plan(connection, store, component, messages, careful=True)
    assert (decisions.counts, decisions.writes) == ({"redelivered": 1}, [])
    assert connection.execute("SELECT count(*) FROM calls").fetchone() == (1,)


def test_a_message_that_cannot_be_decoded_is_a_letter_or_an_error(connection, store):
    """An undecodable message is a dead letter or an error, as the policy says."""
    odd = stored(deposit(), SENT)
    odd = type(odd)(odd.id, SENT, "Deposit", 0, 1, "[]", None, odd.time)
    good = stored(deposit("d2"), SENT, 2, 1)
    decisions = plan(connection, store, purse(), [odd, good], policy=FailurePolicy())
    assert decisions.counts == {"dead": 1, "parked": 1}
    assert [letter.failure.reason for letter in decisions.letters] == [
        Reason.UNDECODABLE,
        Reason.PARKED,
    ]
    with pytest.raises(DecodeError):
        plan(connection, store, purse(), [odd, good])


def test_a_message_that_was_given_up_is_not_decoded(connection, store):
    """A message that was given up is not decoded: its class may have ended the process."""
    died = Failure(Reason.PROCESS_DIED, "The process ended")
    odd = stored(deposit(), SENT)
    odd = type(odd)(odd.id, SENT, "Deposit", 0, 1, "[]", None, odd.time)
    policy = FailurePolicy(given_up={1: (died, 3)})
    (letter,) = plan(connection, store, purse(), [odd], policy=policy).letters
    assert (letter.failure, letter.entity) == (died, "purse-123")


def test_states_are_stored_while_planning(connection, store):
    """States are stored while planning, and outputs wait until these are committed."""
    messages = sent(store, deposit("d1", "10"))
    decisions = plan(connection, store, purse(StateBased()), messages)
    assert decisions.pending is not None
    assert [row.type for row in decisions.pending.rows] == ["Deposited"]
    assert (decisions.counts, decisions.categories) == ({"handled": 1}, ["purse"])
    assert connection.execute("SELECT count(*) FROM reservation.states").fetchone() == (1,)


def test_the_categories_to_hold_others_off_are_those_that_may_be_written(connection, store):
    """With care, the declared categories, states and those last written are locked."""
    component = purse(StateBased())
    component.reserve(Deposit, into="sales", key="deposit_id")
    handling = new_handling(ConsumerContext.of(connection, component, COMMANDS))
    assert handling.categories == ["purse", "purse:state", "sales"]
    within = purse()
    within.reserve(Deposit, key="deposit_id")
    handling = new_handling(ConsumerContext.of(connection, within, COMMANDS))
    assert handling.categories == ["purse", "purse:command"]
    elsewhere = Component("purse", id="account_id")

    @elsewhere.handle(Deposit)
    def audit(command, entity, context):
        context.write(command, "audit-1")

    handling = new_handling(ConsumerContext.of(connection, elsewhere, COMMANDS))
    run(connection, store, handling, sent(store, deposit()))
    assert handling.categories == ["audit", "purse"]
