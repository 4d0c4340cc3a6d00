"""States kept in versions: what is stored, what is found again, what is published, what may go."""

import json
import threading
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from psycopg.rows import dict_row

from consumers.batch import effects
from consumers.batch.batch_size import BatchSize
from consumers.dead_letters import administration
from consumers.dead_letters.administration import Selection
from consumers.loop import cleaning
from consumers.loop.consumer import Consumer
from consumers.runtime.stopping import Stop
from reservation import Component, MessageStore, Metadata, StateBased
from reservation.errors import (
    DeclarationError,
    EncodeError,
    ExpectedVersionError,
    ExpiredError,
    HandlerError,
    MessageError,
    MessageIdConflictError,
)
from reservation.idempotence.state_based.check import MOST_DELTAS
from reservation.idempotence.state_based.clean_up import clean_up_states, count_removable
from reservation.idempotence.state_based.delta import apply, difference
from reservation.idempotence.state_based.outputs import from_text, to_text
from reservation.idempotence.state_based.states import States, Version
from reservation.maintenance.pruning import Pruned, prune_states
from reservation.messages.message import followed_id
from reservation.postgres.arrays import IntArray, TextArray
from reservation.postgres.connection import connect
from reservation.store import writing
from reservation.testing import NotDeterministicError, check_deterministic
from tests.bank import batch, batches, drain, session
from tests.batch_sizes import Letter, take
from tests.controls import deposit, withdraw
from tests.crashing import Cut
from tests.idempotence import drained, within

COMMANDS = "tally:command"
SENT = "tally:command-1"
STATE = "tally:state-1"
DAY = timedelta(days=1)
EVER = StateBased()


@dataclass(frozen=True)
class Count:
    tally_id: str
    n: int


@dataclass(frozen=True)
class Add:
    tally_id: str
    n: int = 1


@dataclass(frozen=True)
class Look:
    tally_id: str


@dataclass(frozen=True)
class Added:
    tally_id: str
    total: int
    note: str = ""


@dataclass
class Tally:
    total: int = 0
    untouched: str = "as it was"
    by_name: dict[str, Decimal] = field(default_factory=dict)


class Crash(BaseException):
    """Stands for the end of a process."""


def tally(once=EVER, handler=None, **options):
    """Return a component that adds up, or does what a handler does."""
    component = Component("tally", entity=Tally, id="tally_id")

    @component.handle(Add, once=once, **options)
    def add(command, state, context):
        if handler is not None:
            return handler(command, state, context)
        state.total += command.n
        context.write(Added(command.tally_id, state.total, "told"), "told-1")
        return Added(command.tally_id, state.total)

    @component.handle(Look, once=once)
    def look(command, state, context):
        pass

    return component


def versions(connection, stream=STATE):
    """Return the versions in a stream, in order."""
    with connection.cursor(row_factory=dict_row) as cursor:
        query = "SELECT * FROM reservation.states WHERE stream_name = %s ORDER BY position"
        return cursor.execute(query, [stream]).fetchall()


def totals(store, stream="tally-1"):
    """Return the totals that were published to a stream."""
    return [json.loads(message.data)["total"] for message in store.read_stream(stream)]


def redeliver(connection, position=0):
    """Let the consumers read again what is behind a position."""
    connection.execute("UPDATE reservation.positions SET position = %s", [position])


def crash_between(connection, component):
    """Handle what there is up to where the states are stored and nothing is published."""
    claimed = batch(connection, COMMANDS, component)

    def crash(*_, **__):
        raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(effects, "_publish", crash)
        with pytest.raises(Crash):
            claimed.run(100)


def age(connection, days=30):
    """Let all versions have been stored long ago."""
    connection.execute(
        "UPDATE reservation.states SET time = time - make_interval(days => %s)", [days]
    )


def whole(connection, stream=STATE):
    """Return the newest state."""
    return json.loads(States(connection).newest(stream))


# What is stored


@pytest.mark.parametrize("form", ["whole", "delta"])
def test_each_message_makes_a_version(connection, store, form):
    """Also one that changes nothing; each names its message, and positions have no gaps."""
    store.write([Add("1", 2), Look("1"), Add("1", 3)], SENT)
    drain(connection, tally(StateBased(form)))
    sent = list(store.read_stream(SENT))
    stored = versions(connection)
    assert [one["position"] for one in stored] == [0, 1, 2]
    assert [str(one["message_id"]) for one in stored] == [message.id for message in sent]
    assert [one["global_position"] for one in stored] == [1, 2, 3]
    assert {one["category"] for one in stored} == {COMMANDS}
    assert all(one["published"] for one in stored)
    assert whole(connection)["total"] == 5
    assert totals(store) == [2, 5]


def test_a_delta_holds_what_changed(connection, store):
    """And the first version the whole."""
    store.write([Add("1", 2), Add("1", 3), Look("1")], SENT)
    drain(connection, tally(StateBased("delta")))
    first, second, third = versions(connection)
    assert set(first["state"]) == {"total", "untouched", "byName"}
    assert second["state"] == {"changed": {"total": 5}}
    assert third["state"] == {}


def test_the_whole_is_stored_now_and_then_among_deltas(connection, store):
    """So that no state takes long to build; and each is what it would be without deltas."""
    n = 2 * MOST_DELTAS + 10
    store.write([Add("1")] * n, SENT)
    for size in (7, 100, 100):
        batch(connection, COMMANDS, tally(StateBased("delta"))).run(size)
    stored = versions(connection)
    wholes = [one["position"] for one in stored if one["base"] == one["position"]]
    assert wholes == [0, MOST_DELTAS + 1, 2 * MOST_DELTAS + 2]
    read = States(connection).read((STATE, position) for position in range(n))
    assert [json.loads(read[STATE, p].text)["total"] for p in range(n)] == list(range(1, n + 1))


def test_forms_can_be_changed_for_one_stream(connection, store):
    """A version says itself what it holds."""
    for n, form in enumerate(["whole", "delta", "whole", "delta", "delta"], 1):
        store.write(Add("1"), SENT)
        batches(connection, tally(StateBased(form)))
        assert whole(connection)["total"] == n
    redeliver(connection)
    assert batches(connection, tally())[0].counts == {"redelivered": 5}
    assert totals(store) == [1, 2, 3, 4, 5]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=5,
)


@given(st.dictionaries(st.text(), JSON), st.dictionaries(st.text(), JSON))
def test_a_difference_makes_the_one_of_the_other(before, after):
    """Whatever the objects hold."""
    one, other = json.dumps(before), json.dumps(after)
    assert json.loads(apply(one, difference(one, other))) == after
    assert difference(one, one) == "{}"


def test_a_mapping_keeps_its_order(connection, store):
    """A handler that goes through it does the same after it was stored as before."""

    def handle(command, state, context):
        state.by_name = {"zebra": Decimal("1.50"), "a": Decimal("0.10")} | state.by_name
        return Added(command.tally_id, 0, " ".join(f"{k}={v}" for k, v in state.by_name.items()))

    store.write([Add("1"), Add("1")], SENT)
    component = tally(handler=handle)
    batch(connection, COMMANDS, component).run(1)
    batches(connection, component)
    redeliver(connection)
    with structlog.testing.capture_logs() as logs:
        batches(connection, component)
    assert not [entry for entry in logs if entry["event"] == "outputs_differ"]
    notes = [json.loads(message.data)["note"] for message in store.read_stream("tally-1")]
    assert notes == ["zebra=1.50 a=0.10"] * 2


# What comes again


@pytest.mark.parametrize("form", ["whole", "delta"])
def test_what_comes_again_is_handled_on_the_state_before_it(connection, store, form):
    """And neither stored nor published again."""
    seen = []

    def handle(command, state, context):
        seen.append(state.total)
        state.total += command.n
        return Added(command.tally_id, state.total)

    component = tally(StateBased(form), handle)
    store.write([Add("1", 1), Add("1", 10), Add("1", 100)], SENT)
    batches(connection, component)
    before = versions(connection), list(store.read_stream("tally-1"))
    redeliver(connection, 1)
    assert batches(connection, component)[0].counts == {"redelivered": 2}
    assert seen == [0, 1, 11, 1, 11]
    assert (versions(connection), list(store.read_stream("tally-1"))) == before


def test_what_was_stored_and_not_published_is_published(connection, store):
    """With what came in between handled on top of it."""
    component = tally()
    store.write([Add("1", 1), Add("1", 10)], SENT)
    crash_between(connection, component)
    assert [one["published"] for one in versions(connection)] == [False, False]
    assert totals(store) == []
    store.write(Add("1", 100), SENT)
    assert batches(connection, component)[0].counts == {"redelivered": 2, "handled": 1}
    assert totals(store) == totals(store, "told-1") == [1, 11, 111]
    assert all(one["published"] for one in versions(connection))


def test_what_was_never_handled_meets_the_newest_state(connection, store):
    """Although it was sent first."""
    component = tally()
    store.write([Add("1", 1), Add("1", 10)], SENT)
    batch(connection, COMMANDS, component)
    redeliver(connection, 1)
    batches(connection, component)
    redeliver(connection)
    assert batches(connection, component)[0].counts == {"handled": 1, "redelivered": 1}
    assert totals(store) == [10, 11]


def test_what_chance_gave_is_given_again(connection, store):
    """Ids, random numbers and the time, although the message is stored at another time now."""
    seen = []

    def handle(command, state, context):
        seen.append((context.time, context.id("a"), context.random.random(), context.id()))

    store.write(Add("1"), SENT)
    crash_between(connection, tally(handler=handle))
    connection.execute("UPDATE message_store.messages SET time = time + interval '1 day'")
    drain(connection, tally(handler=handle))
    assert seen[0] == seen[1]
    assert len({*seen[0]}) == 4


def test_the_time_that_is_given_again_is_that_of_the_version(connection, store):
    """And so are seed and ids: nothing is worked out anew."""
    seen = []

    def handle(command, state, context):
        seen.append((context.id("a"), context.random.random()))

    store.write(Add("1"), SENT)
    crash_between(connection, tally(handler=handle))
    other = uuid.uuid4()
    connection.execute(
        "UPDATE reservation.states SET given = jsonb_build_object("
        "'time', given -> 'time', 'seed', 'ff', 'ids', jsonb_build_object('a', %s::text))::json",
        [str(other)],
    )
    drain(connection, tally(handler=handle))
    assert seen[1][0] == other
    assert seen[1][1] != seen[0][1]


# What differs


def unsteady(results):
    """Return a component whose handler publishes another of these each time, or raises it."""
    left = iter(results)

    def handle(command, state, context):
        result = next(left)
        if isinstance(result, Exception):
            raise result
        state.total = result
        return Added(command.tally_id, result)

    return tally(handler=handle)


@pytest.mark.parametrize("again", [2, ValueError("something secret")])
@pytest.mark.parametrize("crashes", [True, False])
def test_a_handling_that_comes_out_otherwise_publishes_what_was_stored(
    connection, store, again, crashes
):
    """And raises an alarm that names the message and repeats nothing of it."""
    component = unsteady([1, again])
    store.write(Add("1"), SENT)
    if crashes:
        crash_between(connection, component)
    else:
        batches(connection, component)
        redeliver(connection)
    with structlog.testing.capture_logs() as logs:
        assert batches(connection, component)[0].counts == {"differing": 1}
    assert totals(store) == [1]
    assert whole(connection)["total"] == 1
    (alarm,) = [entry for entry in logs if entry["event"] == "outputs_differ"]
    assert alarm["log_level"] == "error"
    assert (alarm["type"], alarm["stream_name"], alarm["global_position"]) == ("Add", SENT, 1)
    assert (alarm["state_stream"], alarm["state_position"]) == (STATE, 0)
    assert "secret" not in str(alarm)


def test_outputs_are_published_with_all_their_metadata(connection, store):
    """Those that were stored say the same as those that the handler wrote."""
    store.write(Add("1"), SENT, metadata=Metadata(properties={"by": "me"}, reply_stream_name="r-1"))
    crash_between(connection, unsteady([1]))
    drain(connection, unsteady([2]))
    (message,) = store.read_stream("tally-1")
    assert message.metadata.properties == {"by": "me"}
    assert message.metadata.causation_message_global_position == 1


def test_a_test_finds_a_handler_that_is_not_deterministic():
    """In its state, in its messages, and in how many there are."""

    def other_state(command, state, context):
        state.total = uuid.uuid4().int

    def other_event(command, state, context):
        return Added(command.tally_id, 1, str(uuid.uuid4()))

    count = iter([1, 2])

    def other_count(command, state, context):
        return [Added(command.tally_id, 1)] * next(count)

    streams = iter(["a-1", "b-1"])

    def other_stream(command, state, context):
        context.write(Added(command.tally_id, 1), next(streams))

    for handler, told in (
        (other_state, "left another state the second time: total differs"),
        (
            other_event,
            "message 1 that the handler .*, Added, was different the second time: note",
        ),
        (other_count, "published 1 messages, and the second time 2"),
        (other_stream, "stream name differs"),
    ):
        with pytest.raises(NotDeterministicError, match=told):
            check_deterministic(tally(handler=handler), Add("1"))


def test_a_test_of_a_good_handler_gets_what_it_did():
    """On the state that is given, which stays as it is."""
    state = Tally(5)
    done = check_deterministic(tally(), Add("1", 2), state)
    assert (done.state.total, state.total) == (7, 5)
    assert done.events == [Added("1", 7)]
    assert [write.message for write in done.context.writes] == [Added("1", 7, "told")]


# What a handler can not do


def test_nothing_that_can_fail_later_is_published(connection, store):
    """A message with an expected version is refused before the state is stored."""

    def handle(command, state, context):
        context.write(Added("1", 1), "told-1", expected_version=-1)

    store.write(Add("1"), SENT)
    with pytest.raises(HandlerError, match="with an expected version; with StateBased the state"):
        batches(connection, tally(handler=handle))
    assert versions(connection) == []


def test_a_handler_has_no_connection(connection, store):
    """What it does elsewhere would be done at every handling."""
    store.write(Add("1"), SENT)
    with pytest.raises(HandlerError) as caught:
        batches(connection, tally(handler=lambda command, state, context: context.connection))
    assert "a handler with StateBased has none" in str(caught.value.__cause__ or caught.value)


def test_a_state_that_can_not_be_stored_is_refused(connection, store):
    """And nothing of its message is stored."""

    def handle(command, state, context):
        state.total = "many"

    store.write(Add("1"), SENT)
    with pytest.raises(
        HandlerError, match=r"The state that the handler of Add .* cannot be stored"
    ):
        batches(connection, tally(handler=handle))
    assert versions(connection) == []


def test_an_output_that_can_not_be_stored_is_refused_before_the_state_is(connection, store):
    """Because it could never be published."""
    store.write(Add("1"), SENT)
    with pytest.raises(EncodeError, match="Cannot encode a Added"):
        batches(connection, tally(handler=lambda *_: Added("1", "many")))
    assert versions(connection) == []


def test_more_than_the_store_takes_at_once_is_the_handlers_error(connection, store, monkeypatch):
    """It names the message, and nothing of it is stored."""
    store.write(Add("1"), SENT)
    monkeypatch.setattr(writing, "MOST_BYTES", 100)
    with pytest.raises(HandlerError, match=r"handler of Add .* cannot publish: The 2 messages"):
        batches(connection, tally())
    assert versions(connection) == []


def test_outputs_are_kept_as_they_are():
    """Also those without metadata, and numbers to their last digit."""
    rows = [
        (
            uuid.uuid4(),
            "told-1",
            "Told",
            '{"n":1.10,"o":12345678901234567890}',
            '{"by":"me"}',
            None,
        ),
        (uuid.uuid4(), "told-1", "Told", "{}", None, None),
    ]
    assert from_text(to_text(rows)) == rows


def test_an_id_that_is_taken_stops_the_consumer(connection, store):
    """With an error that names the version; the position is before the message."""
    store.write(Add("1"), SENT)
    crash_between(connection, tally())
    (version,) = versions(connection)
    store.write(Added("1", 7), "another-1", id=uuid.UUID(version["outputs"][0][0]))
    with pytest.raises(MessageError, match="Cannot publish what follows the version 0 of tally:st"):
        batch(connection, COMMANDS, tally()).run(100, careful=True)
    assert connection.execute("SELECT position FROM reservation.positions").fetchone() == (0,)


@dataclass
class Wave:
    """A state that has no form in JSON."""

    amplitude: complex = 0j


@pytest.mark.parametrize(
    ("entity", "told"),
    [
        (None, "the entity is None;"),
        (Counter, "the entity is Counter"),
        (Wave, "Wave cannot be kept as a state"),
    ],
)
def test_a_state_is_a_dataclass_with_a_form_in_json(entity, told):
    """Anything else is refused when it is declared."""
    component = Component("tally", entity=entity, id="tally_id")
    with pytest.raises(DeclarationError, match=told):
        component.handle(Add, once=StateBased())


def test_options_that_mean_nothing_are_refused():
    """When they are given."""
    with pytest.raises(DeclarationError, match="'whole' state or a 'delta', not 'half'"):
        StateBased("half")
    with pytest.raises(DeclarationError, match="longer than 0"):
        StateBased(window=timedelta(0))


# Others at the same time


def test_the_second_of_two_that_handle_a_message_at_once_stores_nothing(
    connection, store, database_url
):
    """It finds the version when it runs again, and publishes the same."""
    store.write(Add("1", 5), SENT)
    with connect(database_url, autocommit=True) as other:

        def handle(command, state, context):
            if not other.closed and not versions(other):
                batches(other, tally())
                redeliver(other)
            state.total += command.n
            context.write(Added(command.tally_id, state.total, "told"), "told-1")
            return Added(command.tally_id, state.total)

        one = batch(connection, COMMANDS, tally(handler=handle))
        with pytest.raises(
            ExpectedVersionError, match="Another transaction stored the state first"
        ):
            one.run(100)
    assert batches(connection, tally(handler=handle))[0].counts == {"redelivered": 1}
    assert totals(store) == totals(store, "told-1") == [5]


def is_stateful(message):
    """Tell whether a message is one of those in two steps."""
    return message.type in "SA"


def test_batches_end_where_the_two_steps_begin_and_end():
    """As much is read next as was of use, and then twice as much each time."""
    read, taken = take(BatchSize(set(), is_stateful), "bbSSSbbbbbbbS")
    assert "".join(taken) == "bbSSSbbbbbbbS"
    assert all(len(set(part)) == 1 for part in taken)
    assert read[0] == 13
    read, taken = take(BatchSize({"A"}, is_stateful), "SSAAbS")
    assert taken == ["SS", "A", "A", "b", "S"]
    assert [BatchSize(set(), is_stateful).cut([Letter("S")] * 5), BatchSize(set()).cut([])] == [
        5,
        0,
    ]


@pytest.mark.parametrize("form", ["whole", "delta"])
def test_copies_within_the_category_of_their_commands_have_a_state(connection, store, form):
    """Its versions are stored, and a redelivery of the copy publishes the same again."""
    component = within(StateBased(form))
    sent = [deposit("d1", "5", "1"), deposit("d1", "5", "1"), withdraw("w1", "2", account="1")]
    for command in sent:
        store.write(command, "purse:command-1")
    assert drained(connection, component) == {"reserved": 2, "duplicate": 1, "handled": 2}
    assert json.loads(States(connection).newest("purse:state-1") or "")["balance"] == 3
    events = list(store.read_stream("purse-1"))
    redeliver(connection)
    assert drained(connection, component) == {"duplicate": 3, "redelivered": 2}
    assert list(store.read_stream("purse-1")) == events


def test_other_handlers_of_the_component_share_no_batch_with_it(connection, store):
    """And the order of the messages stays."""
    calls = []
    component = tally()
    component.message(Added)

    @component.handle(Count)
    def count(command, entity, context):
        calls.append((command.n, context.connection is connection))

    store.write([Add("1"), Count("1", 1), Count("1", 2), Add("1"), Count("1", 3)], SENT)
    results = batches(connection, component)
    assert sum(result.counts["handled"] for result in results) == 5
    assert calls == [(1, True), (2, True), (3, True)]


def test_a_dead_letter_is_published_when_it_is_handled_again(connection, store, database_url):
    """Whether its handler failed, or its state was stored and its output could not follow."""
    broken = {2}

    def handle(command, state, context):
        if command.n in broken:
            raise ValueError
        state.total += command.n
        return Added(command.tally_id, state.total)

    component = tally(handler=handle)
    store.write([Add("1", 1), Add("1", 2), Add("1", 3)], SENT)
    store.write(Add("2", 10), "tally:command-2")
    taken = followed_id(next(iter(store.read_stream("tally:command-2"))).id, "tally-2", 0)
    store.write(Added("9", 9), "another-1", id=taken)
    run(connection, database_url, component, "SELECT count(*) = 3 FROM reservation.dead_letters")
    assert totals(store) == [1]
    assert [one["published"] for one in versions(connection, "tally:state-2")] == [False]
    broken.clear()
    connection.execute("DELETE FROM message_store.messages WHERE id = %s", [taken])
    administration.retry(connection, Selection(), [])
    run(
        connection,
        database_url,
        component,
        "SELECT count(*) = 0 FROM reservation.dead_letters WHERE state <> 'handled'",
    )
    assert (totals(store), totals(store, "tally-2")) == ([1, 3, 6], [10])
    assert all(
        one["published"] for one in versions(connection) + versions(connection, "tally:state-2")
    )


def run(connection, database_url, component, until):
    """Run the consumer of the component's commands until a query says true."""
    connection.execute("DELETE FROM reservation.members")
    stop = Stop()
    with session(database_url) as opened:
        consumer = Consumer(opened, component, COMMANDS)
        running = threading.Thread(target=consumer.run, args=[stop])
        running.start()
        try:
            while connection.execute(until).fetchone() != (True,):
                assert running.is_alive()
                running.join(0.02)
        finally:
            stop.request()
            running.join(60)


# What may go


def aged(connection, store, form="whole", n=5, window=DAY):
    """Return a component with versions that are older than its window."""
    component = tally(StateBased(form, window))
    store.write([Add("1")] * n, SENT)
    drain(connection, component)
    age(connection)
    return component


@pytest.mark.parametrize("form", ["whole", "delta"])
def test_old_versions_go_and_the_state_stays(connection, store, form):
    """The newest never goes, nor what it builds on."""
    n = MOST_DELTAS + 5
    component = aged(connection, store, form, n)
    expected = n - 1 if form == "whole" else MOST_DELTAS + 1
    assert count_removable(connection, DAY) == expected
    assert clean_up_states(connection, DAY).removed == expected
    assert count_removable(connection, DAY) == clean_up_states(connection, DAY).removed == 0
    assert versions(connection)[-1]["position"] == n - 1
    store.write(Add("1"), SENT)
    drain(connection, component)
    assert whole(connection)["total"] == n + 1
    assert versions(connection)[-1]["position"] == n


@pytest.mark.parametrize("form", ["whole", "delta"])
def test_what_is_within_the_window_can_be_handled_again(connection, store, form):
    """So the state before it stays, with what that builds on."""
    component = aged(connection, store, form, 5)
    store.write([Add("1")] * 2, SENT)
    batches(connection, component)
    expected = 4 if form == "whole" else 0
    assert count_removable(connection, DAY) == expected
    assert clean_up_states(connection, DAY).removed == expected
    redeliver(connection, 5)
    with structlog.testing.capture_logs() as logs:
        assert batches(connection, component)[0].counts == {"redelivered": 2}
    assert not [entry for entry in logs if entry["event"] == "outputs_differ"]


def test_what_is_not_known_to_be_published_stays(connection, store):
    """However old it is, and all that comes after it."""
    component = tally(StateBased(window=DAY))
    store.write([Add("1")] * 2, SENT)
    batches(connection, component)
    store.write(Add("1"), SENT)
    crash_between(connection, component)
    age(connection)
    assert clean_up_states(connection, DAY).removed == 1
    assert [one["position"] for one in versions(connection)] == [1, 2]
    assert batches(connection, component)[0].counts == {"redelivered": 1}
    assert totals(store) == [1, 2, 3]


def test_what_was_removed_is_refused_as_expired(connection, store):
    """It is never taken for new; the position stays before it."""
    component = aged(connection, store)
    clean_up_states(connection, DAY)
    for position in (0, 3):
        redeliver(connection, position)
        with pytest.raises(ExpiredError, match="cannot be known: versions of tally:state-1 up to"):
            batch(connection, COMMANDS, component).run(1)
    # The newest is there, and the state before it is not.
    redeliver(connection, 4)
    with pytest.raises(ExpiredError, match="global position 5 was handled before"):
        batch(connection, COMMANDS, component).run(1)
    assert totals(store) == [1, 2, 3, 4, 5]


def test_a_backlog_that_is_older_than_the_window_is_new_all_the_same(connection, store):
    """What counts is how far the removed versions went, not the clock."""
    component = aged(connection, store)
    store.write([Add("1")] * 2, SENT)
    connection.execute("UPDATE message_store.messages SET time = time - interval '1 year'")
    clean_up_states(connection, DAY)
    assert batches(connection, component)[0].counts == {"handled": 2}


def test_what_was_removed_counts_for_its_stream_and_category(connection, store):
    """A message of another category or stream may be lower, and is new all the same."""
    store.write([Add("2")], "tally:command-2")
    component = tally(StateBased(window=DAY))
    store.write([Add("1")] * 3, SENT)
    batch(connection, COMMANDS, component)
    redeliver(connection, 1)
    batches(connection, component)
    age(connection)
    assert clean_up_states(connection, DAY).removed == 2
    redeliver(connection)
    assert batch(connection, COMMANDS, component).run(1).counts == {"handled": 1}  # of stream 2
    expired = connection.execute("SELECT expired FROM reservation.state_horizons").fetchall()
    assert expired == [({COMMANDS: 3},)]
    connection.execute("UPDATE reservation.state_horizons SET expired = '{\"another\": 3}'")
    with pytest.raises(MessageIdConflictError):  # it was taken for new, and published otherwise
        batch(connection, COMMANDS, component).run(1)


def test_a_message_that_is_known_in_one_stream_is_new_to_another(connection, store):
    """A state's stream has what was handled for it, and no more."""
    store.write(Add("1"), SENT)
    drain(connection, tally())
    (stored,) = versions(connection)
    here, there = States(connection).look(
        [(STATE, str(stored["message_id"])), ("tally:state-2", str(stored["message_id"]))]
    )
    assert here.known is not None
    assert (there.known, there.newest) == (None, -1)


def test_what_is_not_all_there_is_not_read(connection, store):
    """Nor is what was never stored; there is no newest state of an unknown stream."""
    store.write([Add("1")] * 3, SENT)
    drain(connection, tally(StateBased("delta")))
    states = States(connection)
    assert states.read([(STATE, 3), ("tally:state-2", 0)]) == {}
    assert states.newest("tally:state-2") is None
    connection.execute("DELETE FROM reservation.states WHERE position = 1")
    assert set(states.read([(STATE, 0), (STATE, 2)])) == {(STATE, 0)}


def test_no_more_is_read_than_what_a_state_builds_on(connection, store):
    """Each version once, also where two states build on it."""
    for stream in "12":
        store.write([Add(stream)] * 4, f"tally:command-{stream}")
    drain(connection, tally(StateBased("delta")))
    rows = States(connection)._execute(
        "read", streams=TextArray([STATE] * 2), positions=IntArray([1, 2])
    )
    assert sorted(row[:3] for row in rows) == [(STATE, position, 0) for position in range(3)]


def test_a_version_is_found_wherever_it_is_stored(connection, store):
    """And whatever way the planner takes to it."""
    store.write([Add("1")] * 3, SENT)
    drain(connection, tally())
    connection.execute("UPDATE reservation.states SET published = true WHERE position = 0")
    connection.execute("SET enable_indexscan = off")
    connection.execute("SET enable_bitmapscan = off")
    read = States(connection).read([(STATE, 0)])
    assert json.loads(read[STATE, 0].text)["total"] == 1


def test_the_newest_of_a_stream_is_its_own(connection, store):
    """Also where another has more versions."""
    for stream, n in (("1", 3), ("2", 1), ("3", 2)):
        store.write([Add(stream)] * n, f"tally:command-{stream}")
    drain(connection, tally())
    assert [whole(connection, f"tally:state-{stream}")["total"] for stream in "123"] == [3, 1, 2]


def test_a_version_that_another_stored_first_is_named(connection, store):
    """By its stream and position, which the server tells."""
    store.write(Add("1"), SENT)
    drain(connection, tally())
    with pytest.raises(ExpectedVersionError, match=r"first: Key .*=\(tally:state-1, 0\)"):
        States(connection).append(
            [Version(STATE, 0, uuid.uuid4(), COMMANDS, 9, 0, "{}", "{}", "[]", "")]
        )


def test_what_is_published_says_nothing_of_other_versions(connection, store):
    """Neither of those in other streams nor of those before it."""
    component = tally()
    store.write([Add("1"), Add("1")], SENT)
    crash_between(connection, component)
    store.write(Add("2"), "tally:command-2")
    redeliver(connection, 2)
    drain(connection, component)
    States(connection).publish([(STATE, 1), ("tally:state-2", 0)])
    assert [one["published"] for one in versions(connection)] == [False, True]


@pytest.mark.parametrize("streams", ["12", "21"])
def test_a_stream_is_built_from_its_own_versions(connection, store, streams):
    """Also if another holds the whole at other positions."""
    for stream in streams:
        form = "delta" if stream == "1" else "whole"
        store.write([Add(stream)] * 3, f"tally:command-{stream}")
        drain(connection, tally(StateBased(form)))
    for stream in streams:
        newest = States(connection).newest(f"tally:state-{stream}")
        assert newest is not None
        assert json.loads(newest)["total"] == 3


def test_a_reserved_command_has_its_state_too(connection, store):
    """A reissue under another id is discarded before it comes to that."""
    component = tally()
    component.reserve(Add, into="tallyTransaction", key="n")
    store.write([Add("1", 5), Add("1", 5), Add("1", 6)], SENT)
    drain(connection, component)
    redeliver(connection)
    drain(connection, component)
    assert totals(store) == [5, 11]
    assert {one["category"] for one in versions(connection)} == {"tallyTransaction"}


def test_the_highest_of_what_was_removed_is_remembered(connection, store):
    """However often something is removed, and whatever is removed last."""
    component = aged(connection, store, n=3)
    assert clean_up_states(connection, DAY).removed == 2
    connection.execute("UPDATE reservation.states SET global_position = 1, category = 'other'")
    store.write(Add("1"), SENT)
    drain(connection, component)
    age(connection)
    assert clean_up_states(connection, DAY).removed == 1
    store.write(Add("1"), SENT)
    drain(connection, component)
    connection.execute("UPDATE reservation.states SET global_position = 1 WHERE position = 3")
    age(connection)
    assert clean_up_states(connection, DAY).removed == 1
    expired = connection.execute("SELECT expired FROM reservation.state_horizons").fetchall()
    assert expired == [({COMMANDS: 2, "other": 1},)]


def test_a_step_removes_a_bounded_number(connection, store):
    """And says where the next one begins, until all streams were looked at."""
    component = tally(StateBased(window=DAY))
    for n, added in enumerate((1, 1, 4, 5, 6)):
        store.write([Add(str(n))] * added, f"tally:command-{n}")
    store.write([Add("1")], "other:command-1")
    drain(connection, component)
    age(connection)
    steps, start = [], ""
    while start is not None:
        step = clean_up_states(connection, DAY, category="tally:state", start=start, at_once=2)
        steps.append(step.removed)
        start = step.resume
    assert sum(steps) == 12
    assert max(steps) == 2
    left = [versions(connection, f"tally:state-{n}") for n in range(5)]
    assert [[one["position"] for one in stream] for stream in left] == [[0], [0], [3], [4], [5]]
    assert count_removable(connection, DAY) == 0


def test_what_one_stream_needs_keeps_nothing_of_another(connection, store):
    """Young versions, and the states that these build on, are those of one stream."""
    whole_, delta = tally(StateBased(window=DAY)), tally(StateBased("delta", DAY))
    for stream, component in (("1", delta), ("2", whole_), ("3", delta), ("4", whole_)):
        store.write([Add(stream)] * 4, f"tally:command-{stream}")
        batches(connection, component)
    age(connection)
    for stream, component in (("1", delta), ("2", whole_), ("5", whole_)):
        store.write(Add(stream), f"tally:command-{stream}")
        batches(connection, component)
    assert clean_up_states(connection, DAY).removed == 6
    left = [versions(connection, f"tally:state-{n}") for n in (1, 2, 3, 4, 5)]
    assert [[one["position"] for one in stream] for stream in left] == [
        [0, 1, 2, 3, 4],
        [3, 4],
        [0, 1, 2, 3],
        [3],
        [0],
    ]


def test_each_stream_is_looked_at_once(connection, store):
    """A step goes on behind the last, or in the one that it had not done with."""
    component = tally(StateBased(window=DAY))
    for n in range(6):
        store.write([Add(str(n))], f"tally:command-{n}")
    drain(connection, component)
    starts, start = [], ""
    while start is not None:
        starts.append(start)
        start = clean_up_states(connection, DAY, start=start, at_once=2).resume
    assert starts == ["", *(f"tally:state-{n}\x01" for n in (1, 3, 5))]
    for n, added in ((1, 1), (2, 4)):
        store.write([Add(str(n))] * added, f"tally:command-{n}")
    drain(connection, component)
    age(connection)
    step = clean_up_states(connection, DAY, at_once=3)
    assert (step.removed, step.resume) == (3, "tally:state-2")
    assert clean_up_states(connection, DAY, start=step.resume, at_once=3).removed == 2


def test_other_categories_are_left_alone(connection, store):
    """Where one is named; also one whose name begins so."""
    aged(connection, store)
    for name in ("tally:statement", "tally", "tally:stat"):
        assert count_removable(connection, DAY, category=name) == 0
        assert clean_up_states(connection, DAY, category=name).removed == 0
    assert count_removable(connection, DAY, category="tally:state") == 4
    connection.execute("UPDATE reservation.states SET stream_name = 'tally:state.other-1'")
    assert count_removable(connection, DAY, category="tally:state") == 0
    store.write([Add("1")] * 2, SENT)
    drain(connection, tally())
    age(connection)
    assert count_removable(connection, DAY, category="tally:state") == 1
    assert clean_up_states(connection, DAY, category="tally:state").removed == 1
    assert count_removable(connection, DAY) == 4


def test_all_categories_are_cleaned_up_where_none_is_named(connection, store):
    """Also those whose names sort first."""
    aged(connection, store)
    connection.execute("UPDATE reservation.states SET stream_name = '1:state-1'")
    assert count_removable(connection, DAY) == 4
    assert clean_up_states(connection, DAY).removed == 4


def test_prune_removes_what_the_component_declares(connection, store):
    """In steps of so many; without `apply` it only counts, without a window there is nothing."""
    component = aged(connection, store)
    prune = prune_states(component)
    (told,) = prune(connection, False, 2)
    assert (told.kind, told.of, told.count, told.unit) == ("states", "tally:state", 4, "versions")
    assert len(versions(connection)) == 5
    assert list(prune_states(tally())(connection, True, 2)) == []
    removed = [Pruned("states", "tally:state", count, "versions") for count in (3, 1)]
    assert list(prune(connection, True, 3)) == removed
    assert len(versions(connection)) == 1
    assert list(prune(connection, True, 3)) == []


def test_a_component_is_pruned_whatever_its_name(connection, store):
    """Names that begin with a capital sort before others."""
    component = Component("Tally", entity=Tally, id="tally_id")
    component.handle(Add, once=StateBased(window=DAY))(lambda *_: None)
    store.write([Add("1")] * 3, "Tally:command-1")
    drain(connection, component)
    age(connection)
    assert [step.count for step in prune_states(component)(connection, True, 100)] == [2]


def test_one_process_at_a_time_cleans_up(connection, store, database_url):
    """Another finds nothing to do, and waits for nobody."""
    aged(connection, store)
    with connect(database_url, autocommit=True) as other, other.transaction():
        assert clean_up_states(other, DAY).removed == 4
        assert clean_up_states(connection, DAY) == clean_up_states(connection, DAY)
        assert clean_up_states(connection, DAY).removed == 0


def test_a_consumer_that_has_nothing_to_do_cleans_up(connection, store, database_url, monkeypatch):
    """Step by step, if the states have a window, and not again for a while."""
    component = aged(connection, store, n=5)
    store.write([Add("1")] * 2, SENT)
    connection.execute("DELETE FROM reservation.members")
    monkeypatch.setattr(cleaning, "PAUSE", 0.0)
    stop = Stop()

    def watch(logger, method, event):
        if event["event"] == "states_removed":
            stop.request()
        return event

    with (
        session(database_url) as opened,
        structlog.testing.capture_logs(processors=[watch]) as logs,
    ):
        Consumer(opened, component, COMMANDS).run(stop)
    events = [entry["event"] for entry in logs]
    assert events.index("batch_committed") < events.index("states_removed")
    assert [entry["versions"] for entry in logs if entry["event"] == "states_removed"] == [4]
    assert [one["position"] for one in versions(connection)] == [4, 5, 6]


@pytest.mark.parametrize(
    ("windows", "longest"),
    [([None], None), ([DAY], DAY), ([DAY, 2 * DAY], 2 * DAY), ([DAY, None], None), ([], None)],
)
def test_the_longest_window_of_a_component_counts(windows, longest):
    """Its handlers share their states."""
    component = Component("tally", entity=Tally, id="tally_id")
    for command, window in zip((Add, Look), windows, strict=False):
        component.handle(command, once=StateBased(window=window))(lambda *_: None)
    assert component.state_window == longest


def test_a_consumer_without_a_window_removes_nothing(connection, store):
    """However old the versions are."""
    component = aged(connection, store, window=None)
    cleaning.Cleaning(component, structlog.get_logger()).at_leisure(connection)
    assert len(versions(connection)) == 5


@pytest.mark.parametrize("at", range(1, 12))
def test_a_connection_that_is_lost_at_any_point_loses_nothing(connection, store, database_url, at):
    """Before each exchange with the server in turn."""
    store.write([Add("1", 1), Add("2", 10), Add("1", 100)], SENT)
    with connect(database_url, autocommit=True) as lost:
        one = batch(lost, COMMANDS, tally())

        def crash():
            raise Crash

        cut = Cut(lost, at, crash)
        try:
            one.run(100)
        except Crash:
            lost.close()
    batches(connection, tally())
    assert (totals(store), totals(store, "tally-2")) == ([1, 101], [10])
    assert sorted(totals(store, "told-1")) == [1, 10, 101]
    assert cut.exchanges >= at - 1
    assert MessageStore(connection).stream_version("tally-1") == 1
