"""States kept in versions: what is stored, what is found again, what is published, what may go."""

import json
import re
import threading
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import structlog
from psycopg import conninfo
from psycopg.rows import dict_row

import consumers
from reservation import Component, Key, Metadata
from reservation.errors import DeclarationError, StoreError
from reservation.strategies import StateBased
from reservation.testing import NotDeterministicError, check_deterministic
from tests.apps.bank import address, drain
from tests.apps.once import prune, redeliver
from tests.consumers.builders import retry_all
from tests.support.awaiting import awaiting
from tests.support.commands import invoke_cli
from tests.support.consuming import until

ROOT = Path(__file__).parents[2]
COMMANDS = "tally:command"
SENT = "tally:command-1"
STATE = "tally:state-1"
DAY = timedelta(days=1)
EVER = StateBased()
MOST_DELTAS = 50  # as docs/explanation/strategies.md says
FORMS = pytest.mark.parametrize("form", ["whole", "delta"])


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


def tally(once=EVER, handler=None, *, name="tally", **options):
    """Return a component that adds up, or that uses a given handler."""
    component = Component(name, entity=Tally, id="tally_id")

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


def positions(connection, *streams):
    """Return the positions of the versions in streams."""
    return [
        [version["position"] for version in versions(connection, f"tally:state-{stream}")]
        for stream in streams
    ]


def totals(store, stream="tally-1"):
    """Return the totals that were published to a stream."""
    return [json.loads(message.data)["total"] for message in store.read_stream(stream)]


def again(connection, component):
    """Handle all messages once more, from the first on."""
    redeliver(connection)
    return drain(connection, component).counts


def errors(connection):
    """Return reason and error of each dead letter, in order."""
    return connection.execute(
        "SELECT reason, error FROM reservation.dead_letters WHERE state = 'dead' "
        "ORDER BY global_position"
    ).fetchall()


def age(connection, days=30):
    """Let all versions have been stored long ago."""
    connection.execute(
        "UPDATE reservation.states SET time = time - make_interval(days => %s)", [days]
    )


# Stored versions


@FORMS
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
    """A whole state is stored every so many versions, and each state is what it was."""
    n, seen = 2 * MOST_DELTAS + 10, []

    def handle(command, state, context):
        seen.append(state.total)
        state.total += 1

    component = tally(StateBased("delta"), handle)
    for size, count in ((7, 7), (1000, n - 7)):
        store.write([Add("1")] * count, SENT)
        drain(connection, component, batch_size=size)
    bases = {version["base"] for version in versions(connection)}
    assert bases == {0, MOST_DELTAS + 1, 2 * MOST_DELTAS + 2}
    assert again(connection, component) == {"redelivered": n}
    assert seen == [*range(n)] * 2


def test_forms_can_be_changed_for_one_stream(connection, store):
    """A stream may mix whole states and deltas: each version says what it holds."""
    for form in ["whole", "delta", "whole", "delta", "delta"]:
        store.write(Add("1"), SENT)
        drain(connection, tally(StateBased(form)))
    assert again(connection, tally()) == {"redelivered": 5}
    assert totals(store) == [1, 2, 3, 4, 5]


def test_a_mapping_keeps_its_order(connection, store):
    """A stored mapping keeps its order."""

    def handle(command, state, context):
        state.by_name = {"zebra": Decimal("1.50"), "a": Decimal("0.10")} | state.by_name
        return Added(command.tally_id, 0, " ".join(f"{k}={v}" for k, v in state.by_name.items()))

    store.write([Add("1"), Add("1")], SENT)
    component = tally(handler=handle)
    drain(connection, component, batch_size=1)
    assert again(connection, component) == {"redelivered": 2}
    notes = [json.loads(message.data)["note"] for message in store.read_stream("tally-1")]
    assert notes == ["zebra=1.50 a=0.10"] * 2


@pytest.mark.parametrize("streams", ["123", "321"])
def test_a_stream_is_built_from_its_own_versions(connection, store, streams):
    """Beside longer and shorter streams, and others of the other form."""
    for stream in streams:
        store.write([Add(stream)] * int(stream), f"tally:command-{stream}")
        drain(connection, tally(StateBased("delta" if stream == "2" else "whole")))
    for stream in streams:
        store.write(Add(stream), f"tally:command-{stream}")
    drain(connection, tally(StateBased("delta")))
    assert [totals(store, f"tally-{n}")[-1] for n in "123"] == [2, 3, 4]
    assert again(connection, tally()) == {"redelivered": 9}


# Redeliveries


@FORMS
def test_a_redelivery_is_handled_on_its_former_state(connection, store, form):
    """A redelivery is handled on its former state, and neither stored nor published again."""
    seen = []

    def handle(command, state, context):
        seen.append(state.total)
        state.total += command.n
        return Added(command.tally_id, state.total)

    component = tally(StateBased(form), handle)
    store.write([Add("1", 1), Add("1", 10), Add("1", 100)], SENT)
    drain(connection, component)
    before = versions(connection), list(store.read_stream("tally-1"))
    redeliver(connection, 1)
    assert drain(connection, component).counts == {"redelivered": 2}
    assert seen == [0, 1, 11, 1, 11]
    assert (versions(connection), list(store.read_stream("tally-1"))) == before


def test_a_version_is_found_whatever_plan_the_server_uses(connection, store):
    """Where the rows lie does not matter."""
    store.write([Add("1")] * 3, SENT)
    drain(connection, tally())
    connection.execute("UPDATE reservation.states SET base = base WHERE position = 0")
    redeliver(connection)
    options = "-cenable_indexscan=off -cenable_bitmapscan=off"
    url = conninfo.make_conninfo(address(connection), options=options)
    assert consumers.drain(tally(), url).counts == {"redelivered": 3}


def test_outputs_of_a_redelivery_are_written_again_under_their_ids(connection, store):
    """What a redelivery publishes is what is in the log, or would be there."""
    store.write([Add("1", 1), Add("1", 10)], SENT)
    drain(connection, tally())
    published = [message.id for message in store.read_stream("report-1")]
    connection.execute("DELETE FROM message_store.messages WHERE id = %s", [published[1]])
    assert again(connection, tally()) == {"redelivered": 2}
    assert [message.id for message in store.read_stream("report-1")] == published
    assert totals(store) == totals(store, "report-1") == [1, 11]


def test_an_unhandled_message_is_handled_on_the_newest_state(connection, store):
    """A message that was never handled is handled on the newest state."""
    drain(connection, tally())
    store.write([Add("1", 1), Add("1", 10)], SENT)
    redeliver(connection, 1)
    assert drain(connection, tally()).counts == {"handled": 1}
    assert again(connection, tally()) == {"handled": 1, "redelivered": 1}
    assert totals(store) == [10, 11]


def test_a_message_that_is_known_in_one_stream_is_new_to_another(connection, store):
    """A message that names another entity by now is handled for that one."""
    store.write(Add("1"), SENT)
    drain(connection, tally())
    connection.execute(
        'UPDATE message_store.messages SET data = data || \'{"tallyId": "2"}\' '
        "WHERE stream_name = 'tally:command-1'"
    )
    assert again(connection, tally()) == {"handled": 1}
    assert totals(store, "tally-2") == [1]


def test_a_redelivery_gets_the_same_ids_and_random_numbers(connection, store):
    """A redelivery gets the same ids, random numbers and time, which its version holds."""
    seen = []

    def handle(command, state, context):
        seen.append((context.time, context.id("a"), context.random.random(), context.id()))

    component, other = tally(handler=handle), uuid.uuid4()
    store.write(Add("1"), SENT)
    drain(connection, component)
    connection.execute("UPDATE message_store.messages SET time = time + interval '1 day'")
    again(connection, component)
    assert seen[0] == seen[1]
    assert len({*seen[0]}) == 4
    connection.execute(
        "UPDATE reservation.states SET given = jsonb_build_object("
        "'time', given -> 'time', 'seed', 'ff', 'ids', jsonb_build_object('a', %s::text))::json",
        [str(other)],
    )
    again(connection, component)
    assert seen[2][1] == other
    assert seen[2][2] != seen[1][2]


# Handlers that are not deterministic


@pytest.mark.parametrize(
    ("second", "is_async"), [(2, True), (ValueError("something secret"), False)]
)
def test_a_redelivery_with_another_result_publishes_the_stored_one(
    connection, store, second, is_async
):
    """The stored outputs are published, with all their metadata, and an error is logged."""
    left = iter([1, second])

    def handle(command, state, context):
        result = next(left)
        if isinstance(result, Exception):
            raise result
        state.total = result
        return Added(command.tally_id, result)

    component = tally(handler=handle)
    if is_async:
        awaiting(component)
    store.write(Add("1"), SENT, metadata=Metadata(properties={"by": "me"}, reply_stream_name="r-1"))
    drain(connection, component)
    connection.execute("DELETE FROM message_store.messages WHERE stream_name = 'tally-1'")
    with structlog.testing.capture_logs() as logs:
        assert again(connection, component) == {"differing": 1}
    (message,) = store.read_stream("tally-1")
    assert (totals(store), message.metadata.properties) == ([1], {"by": "me"})
    assert message.metadata.causation_message_global_position == 1
    (alarm,) = [entry for entry in logs if entry["event"] == "outputs_differ"]
    assert alarm["log_level"] == "error"
    assert (alarm["type"], alarm["stream_name"], alarm["global_position"]) == ("Add", SENT, 1)
    assert (alarm["state_stream"], alarm["state_position"]) == (STATE, 0)
    assert "secret" not in str(alarm)


def changes_state(command, state, context):
    state.total = uuid.uuid4().int


def changes_event(command, state, context):
    return Added(command.tally_id, 1, str(uuid.uuid4()))


def changes_count(command, state, context, counts=iter([1, 2])):  # noqa: B008  it is the bug
    return [Added(command.tally_id, 1)] * next(counts)


def changes_stream(command, state, context, streams=iter(["a-1", "b-1"])):  # noqa: B008
    context.write(Added(command.tally_id, 1), next(streams))


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (changes_state, "left another state the second time: total differs"),
        (
            changes_event,
            "message 1 that the handler .*, Added, was different the second time: note",
        ),
        (changes_count, "published 1 messages, and the second time 2"),
        (changes_stream, "stream name differs"),
    ],
)
def test_a_test_finds_a_handler_that_is_not_deterministic(handler, problem):
    """`check_deterministic` finds differing states, messages and numbers of messages."""
    component = tally(handler=lambda *given: handler(*given))
    with pytest.raises(NotDeterministicError, match=problem):
        check_deterministic(component, Add("1"))


def test_a_test_of_a_deterministic_handler_gets_its_result():
    """`check_deterministic` returns the result and leaves the given state unchanged."""
    state = Tally(5)
    done = check_deterministic(tally(), Add("1", 2), state)
    assert (done.state.total, state.total) == (7, 5)
    assert done.events == [Added("1", 7)]
    assert [write.message for write in done.context.writes] == [Added("1", 7, "report")]


# Limits of handlers


def test_an_output_may_expect_a_version(connection, store):
    """An output with an expected version is written at that version, or its message is a fault."""

    def handle(command, state, context):
        state.total += command.n
        context.write(Added("1", state.total), "report-1", expected_version=state.total - 2)

    component = tally(handler=handle)
    store.write([Add("1"), Add("1")], SENT)
    drain(connection, component)
    assert again(connection, component) == {"redelivered": 2}
    assert totals(store, "report-1") == [1, 2]
    store.write(Added("1", 7), "report-1")
    store.write(Add("1"), SENT)
    assert drain(connection, component).counts == {"dead": 1}
    assert "with an expected version that is not met" in errors(connection)[0][1]
    assert len(versions(connection)) == 2


UNKEPT = {
    "a connection": (
        lambda state, context: context.connection,
        "with StateBased or async def has none",
    ),
    "a state": (lambda state, context: setattr(state, "total", "many"), "Add .* cannot be stored"),
    "an output": (lambda state, context: Added("1", "many"), "Cannot encode a Added"),
}


def test_what_cannot_be_kept_is_the_handlers_fault(connection, store):
    """The message is a dead letter, with nothing of it stored."""
    for name in UNKEPT:
        store.write(Add(name), f"tally:command-{name}")
    component = tally(
        handler=lambda command, state, context: UNKEPT[command.tally_id][0](state, context)
    )
    assert drain(connection, component, errors="full").counts == {"dead": 3}
    found = connection.execute(
        "SELECT concat(error, error_text, error_traceback) FROM reservation.dead_letters "
        "ORDER BY global_position"
    ).fetchall()
    said = {name: error for name, (error,) in zip(UNKEPT, found, strict=True)}
    for name, (_, problem) in UNKEPT.items():
        assert re.search(problem, said[name]), name
    assert connection.execute("SELECT count(*) FROM reservation.states").fetchone() == (0,)
    assert list(store.read_category("tally")) == []


def test_an_output_whose_id_is_taken_makes_a_dead_letter(connection, store):
    """Another attempt would meet the id again; nothing of the message is stored."""
    store.write(Add("1"), SENT)
    drain(connection, tally())
    (event,) = store.read_stream("tally-1")
    connection.execute(
        "DELETE FROM reservation.states; DELETE FROM message_store.messages WHERE type = 'Added'"
    )
    store.write(Added("1", 7), "another-1", id=uuid.UUID(event.id))
    redeliver(connection)
    assert drain(connection, tally()).counts == {"dead": 1}
    assert f"the message id {event.id}" in errors(connection)[0][1]
    assert (versions(connection), totals(store)) == ([], [])


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


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"state": "half"}, "state='half' is neither 'whole' nor 'delta'"),
        ({"window": timedelta(0)}, "longer than 0"),
        ({"window": "90d"}, "window='90d' is not a timedelta"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, problem):
    """Invalid options of StateBased are refused."""
    with pytest.raises(DeclarationError, match=problem):
        StateBased(**options)


# Beside other processes and other handlers


def test_a_state_that_another_process_changed_first_is_read_again(connection, store):
    """The second of two that change a state stores nothing, and is handled on the new state."""
    store.write(Add("1", 5), SENT)

    def handle(command, state, context):
        if not versions(connection):  # another process is first
            connection.execute(
                "INSERT INTO reservation.states (stream_name, position, message_id, category, "
                "global_position, base, state, given, outputs) VALUES "
                "(%s, 0, gen_random_uuid(), 'other', 1, 0, '{\"total\": 100}', '{}', '[]')",
                [STATE],
            )
        state.total += command.n
        return Added(command.tally_id, state.total)

    assert drain(connection, tally(handler=handle)).counts == {"handled": 1}
    assert totals(store) == [105]


@pytest.mark.parametrize(("is_async", "limit"), [(True, 1), (False, 2), (True, 100)])
def test_other_handlers_of_the_component_share_batches_with_it(connection, store, is_async, limit):
    """Handlers with a state and others see each other's events, whatever the batches are."""
    seen = []
    component = tally(StateBased("delta"))

    @component.project(Added)
    def added(entity, event):
        entity.total = event.total

    @component.handle(Count, once=None)
    def count(command, entity, context):
        seen.append(entity.total)
        return Added(command.tally_id, entity.total + 1000)

    if is_async:
        awaiting(component)
    sent = [Add("1"), Count("1", 1), Look("1"), Add("1", 2), Add("1", 3), Count("1", 3)]
    store.write(sent, SENT)
    assert drain(connection, component, batch_size=limit).counts == {"handled": 6}
    assert seen == [1, 6]
    assert totals(store) == [1, 1001, 3, 6, 1006]
    assert positions(connection, 1) == [[0, 1, 2, 3]]


def test_handlers_of_one_state_share_it_whatever_their_form(connection, store):
    """Handlers whose versions are whole and handlers with deltas go on from each other's state."""
    component = Component("tally", entity=Tally, id="tally_id")

    @component.handle(Add, once=StateBased("delta"))
    def add(command, state, context):
        state.total += command.n

    @component.handle(Look, once=StateBased(window=DAY))
    def look(command, state, context):
        return Added(command.tally_id, state.total)

    store.write([Add("1", 1), Look("1"), Add("1", 2), Look("1")], SENT)
    assert drain(connection, component).counts == {"handled": 4}
    assert totals(store) == [1, 3]
    assert [version["base"] for version in versions(connection)] == [0, 1, 1, 3]


def test_a_dead_letter_is_handled_on_the_state_of_its_turn(connection, store):
    """A dead letter leaves no state, and is handled again before those that wait behind it."""
    broken = {2}

    def handle(command, state, context):
        state.total += command.n
        if command.n in broken:
            raise ValueError
        return Added(command.tally_id, state.total)

    component = tally(handler=handle)
    store.write([Add("1", 1), Add("1", 2), Add("1", 3)], SENT)
    store.write(Add("2", 10), "tally:command-2")
    assert drain(connection, component).counts == {"handled": 2, "dead": 1, "parked": 1}
    assert (totals(store), len(versions(connection))) == ([1], 1)
    broken.clear()
    retry_all(connection)
    drain(connection, component)
    assert (totals(store), totals(store, "tally-2")) == ([1, 3, 6], [10])


def test_a_reserved_command_has_its_state_too(connection, store):
    """A reserved command can be state-based; a reissue is discarded before it is handled."""
    component = tally(key=Key("n", per=None))
    store.write([Add("1", 5), Add("1", 5), Add("1", 6)], SENT)
    drain(connection, component)
    again(connection, component)
    assert totals(store) == [5, 11]
    assert {version["category"] for version in versions(connection)} == {"tallyTransaction"}


# Cleanup: by `prune`, and by a consumer that has nothing to do


windowed = tally(StateBased(window=DAY))
upper = tally(StateBased(window=DAY), name="Tally")
APP = "tests.consumers.test_state_based"
PRUNE = ["prune", f"{APP}:windowed", "--app-dir", str(ROOT)]


def prune_states(connection, name="windowed", **options):
    """Prune, and return how many versions were removed."""
    removed, _ = prune(connection, f"{APP}:{name}", "--app-dir", str(ROOT), **options)
    return sum(removed.values())


def aged(connection, store, form="whole", n=5):
    """Store versions that are older than a day, without a consumer that removes them."""
    store.write([Add("1")] * n, SENT)
    drain(connection, tally(StateBased(form)))
    age(connection)


@FORMS
def test_old_versions_are_removed_and_the_state_is_kept(connection, store, form):
    """Old versions are removed, but not the newest nor those it builds on."""
    n = MOST_DELTAS + 5
    aged(connection, store, form, n)
    expected = n - 1 if form == "whole" else MOST_DELTAS + 1
    assert prune_states(connection, apply=False) == expected
    assert len(versions(connection)) == n
    assert prune_states(connection) == expected
    assert prune_states(connection, apply=False) == prune_states(connection) == 0
    store.write(Add("1"), SENT)
    drain(connection, tally(StateBased(form)))
    assert totals(store)[-1] == n + 1
    assert versions(connection)[-1]["position"] == n


@FORMS
def test_versions_within_the_window_are_kept(connection, store, form):
    """Versions within the window, and those they build on, are kept."""
    aged(connection, store, form)
    component = tally(StateBased(form))
    store.write([Add("1")] * 2, SENT)
    drain(connection, component)
    assert prune_states(connection) == (4 if form == "whole" else 0)
    redeliver(connection, 5)
    assert drain(connection, component).counts == {"redelivered": 2}


def test_a_message_whose_version_was_removed_is_expired(connection, store):
    """A message is refused without its version, or the one before, and not handled as new."""
    aged(connection, store)
    prune_states(connection)
    for first in (0, 3, 4):
        connection.execute("DELETE FROM reservation.dead_letters")
        redeliver(connection, first)
        drain(connection, windowed)
        reason, error = errors(connection)[0]
        assert (first, reason) == (first, "expired")
        assert "was handled before: versions of tally:state-1 up to" in error, first
    assert totals(store) == [1, 2, 3, 4, 5]


def test_a_message_whose_former_state_is_incomplete_is_expired(connection, store):
    """A delta without the versions that it builds on is no state."""
    store.write([Add("1")] * 3, SENT)
    component = tally(StateBased("delta"))
    drain(connection, component)
    connection.execute("DELETE FROM reservation.states WHERE position = 0")
    redeliver(connection, 2)
    assert drain(connection, component).counts == {"dead": 1}
    assert errors(connection)[0][0] == "expired"


def test_a_newest_state_that_is_incomplete_is_no_fault_of_a_message(connection, store):
    """Where the store was damaged, no message is handled or given up."""
    store.write([Add("1")] * 2, SENT)
    component = tally(StateBased("delta"))
    drain(connection, component)
    connection.execute("DELETE FROM reservation.states WHERE position = 0")
    store.write(Add("1"), SENT)
    with pytest.raises(StoreError, match="builds on versions that are missing"):
        drain(connection, component)
    assert errors(connection) == []


def test_a_backlog_that_is_older_than_the_window_is_new_all_the_same(connection, store):
    """A backlog older than the window is new: removed versions decide, not the clock."""
    aged(connection, store)
    store.write([Add("1")] * 2, SENT)
    connection.execute("UPDATE message_store.messages SET time = time - interval '1 year'")
    prune_states(connection)
    assert drain(connection, windowed).counts == {"handled": 2}


def test_removed_versions_count_for_their_stream_and_category(connection, store):
    """Messages of other streams that are older than a removed version are new."""
    store.write(Add("2"), "tally:command-2")
    store.write([Add("1")] * 3, SENT)
    drain(connection, tally())
    connection.execute(
        "DELETE FROM reservation.states WHERE stream_name = 'tally:state-2';"
        "DELETE FROM message_store.messages WHERE stream_name IN ('tally-2', 'report-1')"
    )
    age(connection)
    assert prune_states(connection) == 2
    redeliver(connection)
    counts = drain(connection, windowed).counts
    assert (counts["handled"], counts["dead"]) == (1, 1)  # the others wait behind that one
    expired = connection.execute("SELECT expired FROM reservation.state_horizons").fetchall()
    assert expired == [({COMMANDS: 3},)]


def test_the_highest_removed_position_is_kept(connection, store):
    """The highest removed position of each category is kept, however often some are removed."""
    aged(connection, store, n=3)
    assert prune_states(connection) == 2
    connection.execute("UPDATE reservation.states SET global_position = 1, category = 'other'")
    for _ in range(2):
        store.write(Add("1"), SENT)
        drain(connection, tally())
        connection.execute("UPDATE reservation.states SET global_position = 1 WHERE position = 3")
        age(connection)
        assert prune_states(connection) == 1
    expired = connection.execute("SELECT expired FROM reservation.state_horizons").fetchall()
    assert expired == [({COMMANDS: 2, "other": 1},)]


def test_a_step_removes_a_bounded_number_and_the_next_goes_on(connection, store):
    """All streams are cleaned up, those that a step did not finish too, and each once."""
    for n, added in enumerate((1, 1, 4, 5, 6, 1, 1)):
        store.write([Add(str(n))] * added, f"tally:command-{n}")
    drain(connection, tally())
    age(connection)
    words = ["--apply", "--batch-size", "2", "--database-url", address(connection)]
    done = invoke_cli(*PRUNE, *words)
    steps = [line for line in done.stderr.splitlines() if line.startswith("states of tally:state")]
    removed = [int(line.split(": ")[1].split()[0]) for line in steps]
    assert removed[-1] == 12
    assert max(after - before for before, after in zip([0, *removed], removed, strict=False)) == 2
    assert positions(connection, *range(7)) == [[0], [0], [3], [4], [5], [0], [0]]


def test_versions_needed_by_one_stream_keep_none_of_another(connection, store):
    """Versions that one stream needs keep nothing of another stream."""
    forms = {"1": "delta", "2": "whole", "3": "delta", "4": "whole"}
    for stream, form in forms.items():
        store.write([Add(stream)] * 4, f"tally:command-{stream}")
        drain(connection, tally(StateBased(form)))
    age(connection)
    for stream, form in (("1", "delta"), ("2", "whole"), ("5", "whole")):
        store.write(Add(stream), f"tally:command-{stream}")
        drain(connection, tally(StateBased(form)))
    assert prune_states(connection) == 6
    assert positions(connection, 1, 2, 3, 4, 5) == [
        [0, 1, 2, 3, 4],
        [3, 4],
        [0, 1, 2, 3],
        [3],
        [0],
    ]


def test_other_categories_are_left_alone(connection, store):
    """Also those with a common prefix, and those of a component without a window."""
    for name in ("tally:statement", "tally", "tally:stat", "tally:state.other", "other:state"):
        aged(connection, store)
        connection.execute(
            "UPDATE reservation.states SET stream_name = %s WHERE stream_name = %s",
            [f"{name}-1", STATE],
        )
    assert prune_states(connection, apply=False) == prune_states(connection) == 0
    aged(connection, store)
    drain(connection, tally())
    assert prune_states(connection) == 4


def test_a_component_is_pruned_whatever_its_name(connection, store):
    """A component is pruned whatever the sort order of its name."""
    store.write([Add("1")] * 3, "Tally:command-1")
    drain(connection, upper)
    age(connection)
    assert prune_states(connection, "upper") == 2


def test_one_process_at_a_time_cleans_up(connection, store):
    """One process cleans up at a time; another finds nothing to do and does not wait."""
    aged(connection, store)
    words = [*PRUNE, "--apply", "--database-url", address(connection)]
    with connection.transaction():
        connection.execute("SELECT FROM reservation.states FOR UPDATE")
        first = threading.Thread(target=invoke_cli, args=words)
        first.start()
        waiting = "SELECT FROM pg_locks WHERE NOT granted"
        until(lambda: connection.execute(waiting).fetchall(), first)
        drain(connection, windowed)
        assert len(versions(connection)) == 5
    first.join()
    assert len(versions(connection)) == 1


def test_a_consumer_that_has_nothing_to_do_cleans_up(connection, store):
    """It removes what is older than the longest window of its handlers, which share states."""
    aged(connection, store)
    left = []
    for windows in ([None], [DAY, 60 * DAY], [DAY, None], [DAY]):
        component = Component("tally", entity=Tally, id="tally_id")
        for command, window in zip((Add, Look), windows, strict=False):
            component.handle(command, once=StateBased(window=window))(lambda *_: None)
        drain(connection, component)
        left.append((windows, len(versions(connection))))
    assert left == [([None], 5), ([DAY, 60 * DAY], 5), ([DAY, None], 5), ([DAY], 1)]
