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
from consumers.correcting.correct import correct
from consumers.dead_letters import administration
from consumers.dead_letters.stored_letters import LetterError, Selection
from consumers.loop import cleaning
from consumers.loop.consumer import Consumer
from consumers.runtime.stopping import Stop
from consumers.testing.crashing.inside.cutting import Cut
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
from reservation.store.writing import batch as written_batch
from reservation.store.writing.write import Row
from reservation.testing import NotDeterministicError, check_deterministic
from tests.bank import batch, batches, drain, session
from tests.batch_sizes import Letter, take
from tests.controls import deposit, withdraw
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
    """Return a component that adds up, or that uses a given handler."""
    component = Component("tally", entity=Tally, id="tally_id")

    @component.handle(Add, once=once, **options)
    def add(command, state, context):
        if handler is not None:
            return handler(command, state, context)
        state.total += command.n
        context.write(Added(command.tally_id, state.total, "report"), "report-1")
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
    """Let the consumers read again from a position."""
    connection.execute("UPDATE reservation.positions SET position = %s", [position])


def crash_between(connection, component):
    """Handle all messages up to where the states are stored and nothing is published."""
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


# Stored versions


@pytest.mark.parametrize("form", ["whole", "delta"])
def test_each_message_makes_a_version(connection, store, form):
    """Each message, even one without change, stores one version that names it."""
    store.write([Add("1", 2), Look("1"), Add("1", 3)], SENT)
    drain(connection, tally(StateBased(form)))
    sent = list(store.read_stream(SENT))
    stored = versions(connection)
    assert [version["position"] for version in stored] == [0, 1, 2]
    assert [str(version["message_id"]) for version in stored] == [message.id for message in sent]
    assert [version["global_position"] for version in stored] == [1, 2, 3]
    assert {version["category"] for version in stored} == {COMMANDS}
    assert all(version["published"] for version in stored)
    assert whole(connection)["total"] == 5
    assert totals(store) == [2, 5]


def test_a_delta_holds_what_changed(connection, store):
    """A delta holds what changed, and the first version holds the whole."""
    store.write([Add("1", 2), Add("1", 3), Look("1")], SENT)
    drain(connection, tally(StateBased("delta")))
    first, second, third = versions(connection)
    assert set(first["state"]) == {"total", "untouched", "byName"}
    assert second["state"] == {"changed": {"total": 5}}
    assert third["state"] == {}


def test_the_whole_is_stored_now_and_then_among_deltas(connection, store):
    """A whole state is stored now and then, so that no state takes long to build."""
    n = 2 * MOST_DELTAS + 10
    store.write([Add("1")] * n, SENT)
    for size in (7, 100, 100):
        batch(connection, COMMANDS, tally(StateBased("delta"))).run(size)
    stored = versions(connection)
    wholes = [version["position"] for version in stored if version["base"] == version["position"]]
    assert wholes == [0, MOST_DELTAS + 1, 2 * MOST_DELTAS + 2]
    read = States(connection).read((STATE, position) for position in range(n))
    assert [json.loads(read[STATE, p].text)["total"] for p in range(n)] == list(range(1, n + 1))


def test_forms_can_be_changed_for_one_stream(connection, store):
    """A stream may mix whole states and deltas: each version says what it holds."""
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
    """A difference of two states, applied to the first, gives the second."""
    old, other = json.dumps(before), json.dumps(after)
    assert json.loads(apply(old, difference(old, other))) == after
    assert difference(old, old) == "{}"


def test_a_mapping_keeps_its_order(connection, store):
    """A stored mapping keeps its order."""

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


# Redeliveries


@pytest.mark.parametrize("form", ["whole", "delta"])
def test_a_redelivery_is_handled_on_its_former_state(connection, store, form):
    """A redelivery is handled on its former state, and neither stored nor published again."""
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


def test_a_stored_but_unpublished_state_is_published(connection, store):
    """A state that was stored but not published is published later."""
    component = tally()
    store.write([Add("1", 1), Add("1", 10)], SENT)
    crash_between(connection, component)
    assert [version["published"] for version in versions(connection)] == [False, False]
    assert totals(store) == []
    store.write(Add("1", 100), SENT)
    assert batches(connection, component)[0].counts == {"redelivered": 2, "handled": 1}
    assert totals(store) == totals(store, "report-1") == [1, 11, 111]
    assert all(version["published"] for version in versions(connection))


def test_an_unhandled_message_is_handled_on_the_newest_state(connection, store):
    """A message that was never handled is handled on the newest state."""
    component = tally()
    store.write([Add("1", 1), Add("1", 10)], SENT)
    batch(connection, COMMANDS, component)
    redeliver(connection, 1)
    batches(connection, component)
    redeliver(connection)
    assert batches(connection, component)[0].counts == {"handled": 1, "redelivered": 1}
    assert totals(store) == [10, 11]


def test_a_redelivery_gets_the_same_ids_and_random_numbers(connection, store):
    """A redelivery gets the same ids, random numbers and time as the first handling."""
    seen = []

    def handle(command, state, context):
        seen.append((context.time, context.id("a"), context.random.random(), context.id()))

    store.write(Add("1"), SENT)
    crash_between(connection, tally(handler=handle))
    connection.execute("UPDATE message_store.messages SET time = time + interval '1 day'")
    drain(connection, tally(handler=handle))
    assert seen[0] == seen[1]
    assert len({*seen[0]}) == 4


def test_a_redelivery_reads_time_and_ids_from_its_version(connection, store):
    """Time, seed and ids of a redelivery are read from the version."""
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


# Handlers that are not deterministic


def unsteady(results):
    """Return a component whose handler publishes or raises something else each time."""
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
def test_a_redelivery_with_another_result_publishes_the_stored_one(
    connection, store, again, crashes
):
    """If a redelivery gives another result, the stored one is published and an error logged."""
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
    """Stored outputs are published with the metadata that the handler wrote."""
    store.write(Add("1"), SENT, metadata=Metadata(properties={"by": "me"}, reply_stream_name="r-1"))
    crash_between(connection, unsteady([1]))
    drain(connection, unsteady([2]))
    (message,) = store.read_stream("tally-1")
    assert message.metadata.properties == {"by": "me"}
    assert message.metadata.causation_message_global_position == 1


def test_a_test_finds_a_handler_that_is_not_deterministic():
    """`check_deterministic` finds differing states, messages and numbers of messages."""

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

    for handler, problem in (
        (other_state, "left another state the second time: total differs"),
        (
            other_event,
            "message 1 that the handler .*, Added, was different the second time: note",
        ),
        (other_count, "published 1 messages, and the second time 2"),
        (other_stream, "stream name differs"),
    ):
        with pytest.raises(NotDeterministicError, match=problem):
            check_deterministic(tally(handler=handler), Add("1"))


def test_a_test_of_a_deterministic_handler_gets_its_result():
    """`check_deterministic` returns the result and leaves the given state unchanged."""
    state = Tally(5)
    done = check_deterministic(tally(), Add("1", 2), state)
    assert (done.state.total, state.total) == (7, 5)
    assert done.events == [Added("1", 7)]
    assert [write.message for write in done.context.writes] == [Added("1", 7, "report")]


# Limits of handlers


def test_an_output_with_an_expected_version_is_refused(connection, store):
    """An output with an expected version is refused before the state is stored."""

    def handle(command, state, context):
        context.write(Added("1", 1), "report-1", expected_version=-1)

    store.write(Add("1"), SENT)
    with pytest.raises(HandlerError, match="with an expected version; with StateBased the state"):
        batches(connection, tally(handler=handle))
    assert versions(connection) == []


def test_a_handler_has_no_connection(connection, store):
    """A state-based handler has no connection: what it does would be repeated."""
    store.write(Add("1"), SENT)
    with pytest.raises(HandlerError) as caught:
        batches(connection, tally(handler=lambda command, state, context: context.connection))
    assert "a handler with StateBased or async def has none" in str(
        caught.value.__cause__ or caught.value
    )


def test_a_state_that_cannot_be_stored_is_refused(connection, store):
    """A state that cannot be stored is refused, with nothing of its message stored."""

    def handle(command, state, context):
        state.total = "many"

    store.write(Add("1"), SENT)
    with pytest.raises(
        HandlerError, match=r"The state that the handler of Add .* cannot be stored"
    ):
        batches(connection, tally(handler=handle))
    assert versions(connection) == []


def test_an_output_that_cannot_be_stored_is_refused_before_the_state_is(connection, store):
    """An output that could never be published is refused before the state is stored."""
    store.write(Add("1"), SENT)
    with pytest.raises(EncodeError, match="Cannot encode a Added"):
        batches(connection, tally(handler=lambda *_: Added("1", "many")))
    assert versions(connection) == []


def test_outputs_that_are_too_long_together_are_the_handlers_error(connection, store, monkeypatch):
    """Outputs that are too long together are an error of the handler."""
    store.write(Add("1"), SENT)
    monkeypatch.setattr(written_batch, "MOST_BYTES", 100)
    with pytest.raises(HandlerError, match=r"handler of Add .* cannot publish: The 2 messages"):
        batches(connection, tally())
    assert versions(connection) == []


def test_outputs_are_kept_as_they_are():
    """Outputs are kept unchanged, also without metadata and with long numbers."""
    rows = [
        Row(
            uuid.uuid4(),
            "report-1",
            "Reported",
            '{"n":1.10,"o":12345678901234567890}',
            '{"by":"me"}',
            None,
        ),
        Row(uuid.uuid4(), "report-1", "Reported", "{}", None, None),
    ]
    assert from_text(to_text(rows)) == (rows, [])


def test_an_id_that_is_taken_stops_the_consumer(connection, store):
    """An output's id that is in use stops the consumer before the message."""
    store.write(Add("1"), SENT)
    crash_between(connection, tally())
    (version,) = versions(connection)
    store.write(Added("1", 7), "another-1", id=uuid.UUID(version["outputs"][0][0]))
    with pytest.raises(MessageError, match="Cannot publish what follows the version 0 of tally:st"):
        batch(connection, COMMANDS, tally()).run(100, careful=True)
    assert connection.execute("SELECT position FROM reservation.positions").fetchone() == (0,)


@dataclass
class Wave:
    """A state that JSON cannot express."""

    amplitude: complex = 0j


@pytest.mark.parametrize(
    ("entity", "problem"),
    [
        (None, "the entity is None;"),
        (Counter, "the entity is Counter"),
        (Wave, "Wave cannot be kept as a state"),
    ],
)
def test_a_state_is_a_dataclass_with_a_form_in_json(entity, problem):
    """A state class that JSON cannot express is refused in the declaration."""
    component = Component("tally", entity=entity, id="tally_id")
    with pytest.raises(DeclarationError, match=problem):
        component.handle(Add, once=StateBased())


def test_options_that_mean_nothing_are_refused():
    """Invalid options of StateBased are refused."""
    with pytest.raises(DeclarationError, match="'whole' state or a 'delta', not 'half'"):
        StateBased("half")
    with pytest.raises(DeclarationError, match="longer than 0"):
        StateBased(window=timedelta(0))


# Concurrent processes


def test_the_second_of_two_that_handle_a_message_at_once_stores_nothing(
    connection, store, database_url
):
    """The second of two concurrent handlings stores nothing and publishes the same."""
    store.write(Add("1", 5), SENT)
    with connect(database_url, autocommit=True) as other:

        def handle(command, state, context):
            if not other.closed and not versions(other):
                batches(other, tally())
                redeliver(other)
            state.total += command.n
            context.write(Added(command.tally_id, state.total, "report"), "report-1")
            return Added(command.tally_id, state.total)

        claimed = batch(connection, COMMANDS, tally(handler=handle))
        with pytest.raises(
            ExpectedVersionError, match="Another transaction stored the state first"
        ):
            claimed.run(100)
    assert batches(connection, tally(handler=handle))[0].counts == {"redelivered": 1}
    assert totals(store) == totals(store, "report-1") == [5]


def is_stateful(message):
    """Return whether a message is handled in two phases."""
    return message.type in "SA"


def test_batches_end_where_the_two_steps_begin_and_end():
    """A batch ends where two-phase messages begin or end, and the next ones grow again."""
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
    """Copies within the command category can be state-based."""
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
    """Other handlers share no batch with a state-based one, and the order stays."""
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
    """A retried dead letter is published, also if its state was already stored."""
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
    assert [version["published"] for version in versions(connection, "tally:state-2")] == [False]
    broken.clear()
    connection.execute("DELETE FROM message_store.messages WHERE id = %s", [taken])
    # What it writes is stored with the state, so that another content would come too late.
    (at,) = (version["global_position"] for version in versions(connection, "tally:state-2"))
    content = b'{"tallyId": "2", "n": 20}'
    with pytest.raises(LetterError, match="its state is stored, and only what it writes is missi"):
        correct(connection, component, None, at, content, "a slip")
    administration.retry(connection, Selection(), [])
    run(
        connection,
        database_url,
        component,
        "SELECT count(*) = 0 FROM reservation.dead_letters WHERE state <> 'handled'",
    )
    assert (totals(store), totals(store, "tally-2")) == ([1, 3, 6], [10])
    assert all(
        version["published"]
        for version in versions(connection) + versions(connection, "tally:state-2")
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


# Cleanup


def aged(connection, store, form="whole", n=5, window=DAY):
    """Return a component with versions that are older than its window."""
    component = tally(StateBased(form, window))
    store.write([Add("1")] * n, SENT)
    drain(connection, component)
    age(connection)
    return component


@pytest.mark.parametrize("form", ["whole", "delta"])
def test_old_versions_are_removed_and_the_state_is_kept(connection, store, form):
    """Old versions are removed, but not the newest nor those it builds on."""
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
def test_versions_within_the_window_are_kept(connection, store, form):
    """Versions within the window, and those they build on, are kept."""
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


def test_possibly_unpublished_versions_are_kept(connection, store):
    """Versions that may be unpublished are kept with all later ones."""
    component = tally(StateBased(window=DAY))
    store.write([Add("1")] * 2, SENT)
    batches(connection, component)
    store.write(Add("1"), SENT)
    crash_between(connection, component)
    age(connection)
    assert clean_up_states(connection, DAY).removed == 1
    assert [version["position"] for version in versions(connection)] == [1, 2]
    assert batches(connection, component)[0].counts == {"redelivered": 1}
    assert totals(store) == [1, 2, 3]


def test_a_message_whose_version_was_removed_is_expired(connection, store):
    """A message whose version was removed is refused as expired, not handled as new."""
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
    """A backlog older than the window is new: removed versions decide, not the clock."""
    component = aged(connection, store)
    store.write([Add("1")] * 2, SENT)
    connection.execute("UPDATE message_store.messages SET time = time - interval '1 year'")
    clean_up_states(connection, DAY)
    assert batches(connection, component)[0].counts == {"handled": 2}


def test_removed_versions_count_for_their_stream_and_category(connection, store):
    """Removed versions make only messages of their stream and category expired."""
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
    """A message known in one stream is new to another."""
    store.write(Add("1"), SENT)
    drain(connection, tally())
    (stored,) = versions(connection)
    here, there = States(connection).look(
        [(STATE, str(stored["message_id"])), ("tally:state-2", str(stored["message_id"]))]
    )
    assert here.known is not None
    assert (there.known, there.newest) == (None, -1)


def test_a_state_with_missing_versions_is_not_read(connection, store):
    """A state with missing versions is not read, nor one of an unknown stream."""
    store.write([Add("1")] * 3, SENT)
    drain(connection, tally(StateBased("delta")))
    states = States(connection)
    assert states.read([(STATE, 3), ("tally:state-2", 0)]) == {}
    assert states.newest("tally:state-2") is None
    connection.execute("DELETE FROM reservation.states WHERE position = 1")
    assert set(states.read([(STATE, 0), (STATE, 2)])) == {(STATE, 0)}


def test_only_the_versions_that_a_state_builds_on_are_read(connection, store):
    """Only the versions that the states build on are read, each once."""
    for stream in "12":
        store.write([Add(stream)] * 4, f"tally:command-{stream}")
    drain(connection, tally(StateBased("delta")))
    rows = States(connection)._execute(
        "read", streams=TextArray([STATE] * 2), positions=IntArray([1, 2])
    )
    assert sorted(row[:3] for row in rows) == [(STATE, position, 0) for position in range(3)]


def test_a_version_is_found_wherever_it_is_stored(connection, store):
    """A version is found at any place, whatever plan the server uses."""
    store.write([Add("1")] * 3, SENT)
    drain(connection, tally())
    connection.execute("UPDATE reservation.states SET published = true WHERE position = 0")
    connection.execute("SET enable_indexscan = off")
    connection.execute("SET enable_bitmapscan = off")
    read = States(connection).read([(STATE, 0)])
    assert json.loads(read[STATE, 0].text)["total"] == 1


def test_the_newest_of_a_stream_is_its_own(connection, store):
    """The newest version of a stream is found beside longer streams."""
    for stream, n in (("1", 3), ("2", 1), ("3", 2)):
        store.write([Add(stream)] * n, f"tally:command-{stream}")
    drain(connection, tally())
    assert [whole(connection, f"tally:state-{stream}")["total"] for stream in "123"] == [3, 1, 2]


def test_a_version_that_another_stored_first_is_named(connection, store):
    """A version that another process stored first is named by stream and position."""
    store.write(Add("1"), SENT)
    drain(connection, tally())
    with pytest.raises(ExpectedVersionError, match=r"first: Key .*=\(tally:state-1, 0\)"):
        States(connection).append(
            [Version(STATE, 0, uuid.uuid4(), COMMANDS, 9, 0, "{}", "{}", "[]", "")]
        )


def test_publishing_a_version_marks_no_other(connection, store):
    """Publishing a version marks no other version as published."""
    component = tally()
    store.write([Add("1"), Add("1")], SENT)
    crash_between(connection, component)
    store.write(Add("2"), "tally:command-2")
    redeliver(connection, 2)
    drain(connection, component)
    States(connection).publish([(STATE, 1), ("tally:state-2", 0)])
    assert [version["published"] for version in versions(connection)] == [False, True]


@pytest.mark.parametrize("streams", ["12", "21"])
def test_a_stream_is_built_from_its_own_versions(connection, store, streams):
    """A state is built from the versions of its own stream only."""
    for stream in streams:
        form = "delta" if stream == "1" else "whole"
        store.write([Add(stream)] * 3, f"tally:command-{stream}")
        drain(connection, tally(StateBased(form)))
    for stream in streams:
        newest = States(connection).newest(f"tally:state-{stream}")
        assert newest is not None
        assert json.loads(newest)["total"] == 3


def test_a_reserved_command_has_its_state_too(connection, store):
    """A reserved command can be state-based; a reissue is discarded before it is handled."""
    component = tally()
    component.reserve(Add, into="tallyTransaction", key="n")
    store.write([Add("1", 5), Add("1", 5), Add("1", 6)], SENT)
    drain(connection, component)
    redeliver(connection)
    drain(connection, component)
    assert totals(store) == [5, 11]
    assert {version["category"] for version in versions(connection)} == {"tallyTransaction"}


def test_the_highest_removed_position_is_kept(connection, store):
    """The highest removed position is kept, however often something is removed."""
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
    """A cleanup step removes a bounded number and says where the next one begins."""
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
    assert [[version["position"] for version in stream] for stream in left] == [
        [0],
        [0],
        [3],
        [4],
        [5],
    ]
    assert count_removable(connection, DAY) == 0


def test_versions_needed_by_one_stream_keep_none_of_another(connection, store):
    """Versions that one stream needs keep nothing of another stream."""
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
    assert [[version["position"] for version in stream] for stream in left] == [
        [0, 1, 2, 3, 4],
        [3, 4],
        [0, 1, 2, 3],
        [3],
        [0],
    ]


def test_each_stream_is_cleaned_up_once(connection, store):
    """A cleanup continues behind the last stream, or in one that it did not finish."""
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
    """A cleanup of one category leaves others alone, also those with a common prefix."""
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
    """Without a named category all are cleaned up."""
    aged(connection, store)
    connection.execute("UPDATE reservation.states SET stream_name = '1:state-1'")
    assert count_removable(connection, DAY) == 4
    assert clean_up_states(connection, DAY).removed == 4


def test_prune_removes_what_the_component_declares(connection, store):
    """`prune` removes versions in steps; without `apply` it only counts."""
    component = aged(connection, store)
    prune = prune_states(component)
    (result,) = prune(connection, False, 2)
    assert (result.kind, result.of, result.count, result.unit) == (
        "states",
        "tally:state",
        4,
        "versions",
    )
    assert len(versions(connection)) == 5
    assert list(prune_states(tally())(connection, True, 2)) == []
    removed = [Pruned("states", "tally:state", count, "versions") for count in (3, 1)]
    assert list(prune(connection, True, 3)) == removed
    assert len(versions(connection)) == 1
    assert list(prune(connection, True, 3)) == []


def test_a_component_is_pruned_whatever_its_name(connection, store):
    """A component is pruned whatever the sort order of its name."""
    component = Component("Tally", entity=Tally, id="tally_id")
    component.handle(Add, once=StateBased(window=DAY))(lambda *_: None)
    store.write([Add("1")] * 3, "Tally:command-1")
    drain(connection, component)
    age(connection)
    assert [step.count for step in prune_states(component)(connection, True, 100)] == [2]


def test_one_process_at_a_time_cleans_up(connection, store, database_url):
    """One process cleans up at a time; another finds nothing to do and does not wait."""
    aged(connection, store)
    with connect(database_url, autocommit=True) as other, other.transaction():
        assert clean_up_states(other, DAY).removed == 4
        assert clean_up_states(connection, DAY) == clean_up_states(connection, DAY)
        assert clean_up_states(connection, DAY).removed == 0


def test_a_consumer_that_has_nothing_to_do_cleans_up(connection, store, database_url, monkeypatch):
    """An idle consumer cleans up step by step if there is a window, then pauses."""
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
    assert [version["position"] for version in versions(connection)] == [4, 5, 6]


@pytest.mark.parametrize(
    ("windows", "longest"),
    [([None], None), ([DAY], DAY), ([DAY, 2 * DAY], 2 * DAY), ([DAY, None], None), ([], None)],
)
def test_the_longest_window_of_a_component_counts(windows, longest):
    """The longest window of a component's handlers applies, as they share states."""
    component = Component("tally", entity=Tally, id="tally_id")
    for command, window in zip((Add, Look), windows, strict=False):
        component.handle(command, once=StateBased(window=window))(lambda *_: None)
    assert component.state_window == longest


def test_a_consumer_without_a_window_removes_nothing(connection, store):
    """Without a window nothing is removed, however old."""
    component = aged(connection, store, window=None)
    cleaning.Cleaning(component, structlog.get_logger()).at_leisure(connection)
    assert len(versions(connection)) == 5


@pytest.mark.parametrize("at", range(1, 12))
def test_a_connection_that_is_lost_at_any_point_loses_nothing(connection, store, database_url, at):
    """A connection lost before any exchange with the server loses nothing."""
    store.write([Add("1", 1), Add("2", 10), Add("1", 100)], SENT)
    with connect(database_url, autocommit=True) as lost:
        claimed = batch(lost, COMMANDS, tally())

        def crash():
            raise Crash

        cut = Cut(lost, at, crash)
        try:
            claimed.run(100)
        except Crash:
            lost.close()
    batches(connection, tally())
    assert (totals(store), totals(store, "tally-2")) == ([1, 101], [10])
    assert sorted(totals(store, "report-1")) == [1, 10, 101]
    assert cut.exchanges >= at - 1
    assert MessageStore(connection).stream_version("tally-1") == 1
