"""Consumers of read models: rows and positions, dead letters, batches, shares and kills."""

import json
import os
import random
import threading
from dataclasses import dataclass

import pytest

import consumers
from reservation import ReadContext, ReadModel, Reject
from reservation.errors import DeclarationError, StoreError
from tests.apps.bank import address
from tests.apps.occupancy import (
    BOOKINGS,
    FIRST,
    ROOT,
    Booked,
    Cancelled,
    book,
    by_sets,
    make_nights,
    nights,
    one_by_one,
    take,
)
from tests.consumers.builders import decide
from tests.consumers.test_takeovers import let_expire
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, members, until
from tests.support.read_models import component, remove
from tests.support.started import PATIENCE, Started
from tests.support.tracing import recording


def letters(connection):
    return connection.execute(
        "SELECT consumer, entity, state FROM reservation.dead_letters ORDER BY global_position"
    ).fetchall()


def test_rows_are_made_from_events_and_shown_by_views(connection, store):
    """The tables are in the version's schema, and readers need only the views."""
    book(store, 1, 1, 2)
    store.write(Cancelled("b0", 1), f"{BOOKINGS}-b1x0")
    counts = consumers.drain(one_by_one(), address(connection)).counts
    assert counts == {"handled": 4}
    assert nights(connection) == nights(connection, "occupancy_1") == {1: 1, 2: 1}
    assert list(store.read_category("occupancy_1")) == []
    assert consumers.drain(one_by_one(), address(connection)).counts == {}


def test_events_of_other_types_are_passed(connection, store):
    """A category may hold more than a read model needs."""
    model = ReadModel("occupancy", version=1)
    model.tables(make_nights)
    model.handle(Booked, category=BOOKINGS)(lambda event, context: take(context, event.night, 1))
    store.write(Cancelled("b", 1), f"{BOOKINGS}-b")
    book(store, 3)
    assert consumers.drain(model, address(connection)).counts == {"handled": 1, "ignored": 1}
    assert nights(connection) == {3: 1}


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("make", [one_by_one, by_sets])
def test_the_rows_are_the_same_for_every_batch_size(connection, store, make, size):
    """Many events at once, or one: the order of the log decides."""
    chance = random.Random(size)
    expected: dict[int, int] = {}
    for n in range(60):
        night, kind, sign = chance.randrange(5), *chance.choice([(Booked, 1), (Cancelled, -1)])
        store.write(kind(f"b{n}", night, n + 100), f"{BOOKINGS}-b{n % 7}")
        expected[night] = expected.get(night, 0) + sign * (n + 100)
    consumers.drain(make(), address(connection), batch_size=size)
    assert nights(connection) == expected


def test_events_that_follow_each_other_are_handled_in_one_call(connection, store):
    """An event with another handler in between begins a new call."""
    calls: list[int] = []
    book(store, 1, 2, 3)
    store.write(Cancelled("b", 1), f"{BOOKINGS}-b1x0")
    book(store, 4, 5, booking="other")
    consumers.drain(by_sets(calls=calls), address(connection))
    assert calls == [3, 1, 2]


def test_an_event_that_fails_is_a_dead_letter_of_its_stream(connection, store):
    """Later events of the stream are parked behind it, and those of others are handled."""
    book(store, 1, rooms=13, booking="bad")
    book(store, 2, booking="bad")
    book(store, 3, booking="good")
    consumers.drain(one_by_one(attempts=1), address(connection))
    assert nights(connection) == {3: 1}
    assert letters(connection) == [
        ("occupancy_1", "booking-bad", "dead"),
        ("occupancy_1", "booking-bad", "parked"),
    ]


@pytest.mark.parametrize("bad", [[0], [5], [19], [0, 1, 10, 19]])
def test_of_many_events_only_those_that_fail_are_dead_letters(connection, store, bad):
    """The others of the batch are handled, each once."""
    for n in range(20):
        book(store, 1, rooms=13 if n in bad else 1, booking=f"b{n}")
    consumers.drain(by_sets(attempts=1), address(connection))
    found = connection.execute("SELECT night, taken, events FROM occupancy.nights").fetchall()
    assert found == [(1, 20 - len(bad), 20 - len(bad))]
    assert [entity for _, entity, _ in letters(connection)] == [f"booking-b{n}" for n in bad]


def test_a_letter_that_is_retried_changes_the_rows_once(connection, store):
    """With what was parked behind it, in the order of the stream."""
    book(store, 1, rooms=13, booking="bad")
    book(store, 2, booking="bad")
    fails = by_sets(attempts=1)
    consumers.drain(fails, address(connection))
    mended = ReadModel("occupancy", version=2)
    mended.tables(lambda connection: None)
    calls = []

    @mended.handle_many(Booked, category=BOOKINGS)
    def booked(events, context: ReadContext) -> None:
        calls.append([one.event.night for one in events])

    mended.handle_many(Cancelled, category=BOOKINGS)(lambda events, context: None)
    decide(connection, "retry", "--all")
    consumers.drain(mended, address(connection))
    assert calls == [[1], [2]]
    assert {state for _, _, state in letters(connection)} == {"handled"}


def test_a_statement_that_fails_leaves_nothing(connection, store):
    """The batch is rolled back with the rows of the events before."""
    model = ReadModel("occupancy", version=1, attempts=1)
    model.tables(make_nights)

    @model.handle(Booked, category=BOOKINGS)
    def booked(event: Booked, context: ReadContext) -> None:
        take(context, event.night, event.rooms)
        if event.rooms == 7:
            context.connection.execute("SELECT 1 / 0")

    book(store, 1, 2, 3)
    book(store, 4, rooms=7)
    consumers.drain(model, address(connection))
    assert nights(connection) == {1: 1, 2: 1, 3: 1}


def test_what_a_handler_returns_is_refused(connection, store):
    """A read model writes no events."""
    model = ReadModel("occupancy", version=1, attempts=1)
    model.tables(make_nights)
    model.handle(Booked, category=BOOKINGS)(lambda event, context: event)
    book(store, 1)
    consumers.drain(model, address(connection))
    assert [state for _, _, state in letters(connection)] == ["dead"]


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("local", [True, False])
def test_a_search_path_that_a_handler_leaves_behind_is_refused(connection, store, size, local):
    """The handlers of other messages find the tables of the version, in each batch and after."""
    connection.execute("CREATE SCHEMA other")
    make_nights(connection)
    connection.execute("ALTER TABLE nights SET SCHEMA other")
    model = ReadModel("occupancy", version=1, attempts=1)
    model.tables(make_nights)

    @model.handle(Booked, category=BOOKINGS)
    def booked(event: Booked, context: ReadContext) -> None:
        take(context, event.night, event.rooms)
        if event.night == 2:
            context.connection.execute("SELECT set_config('search_path', 'other', %s)", [local])

    book(store, 1, 2, 3)
    consumers.drain(model, address(connection), batch_size=size)
    assert nights(connection) == {1: 1, 3: 1}
    assert nights(connection, "other") == {}
    assert letters(connection) == [("occupancy_1", "booking-b2x1", "dead")]
    ((error,),) = connection.execute("SELECT error FROM reservation.dead_letters").fetchall()
    assert "left another search_path behind" in error
    decide(connection, "retry", "--all")
    consumers.drain(model, address(connection), batch_size=size)
    book(store, 4, booking="later")
    consumers.drain(model, address(connection), batch_size=size)
    assert nights(connection) == {1: 1, 3: 1, 4: 1}


def test_a_lost_race_is_run_again_and_changes_rows_once(connection, store):
    """The batch is rolled back with all that its handlers did."""
    model, calls = ReadModel("occupancy", version=1), []
    model.tables(make_nights)

    @model.handle(Booked, category=BOOKINGS)
    def booked(event: Booked, context: ReadContext) -> None:
        calls.append(event.night)
        take(context, event.night, event.rooms)
        if event.night == 2 and calls.count(2) == 1:
            context.connection.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")

    book(store, 1, 2, 3)
    assert consumers.drain(model, address(connection)).counts == {"handled": 3}
    assert calls == [1, 2, 1, 2, 3]
    assert nights(connection) == {1: 1, 2: 1, 3: 1}


def test_a_read_model_cannot_reject(connection, store):
    """What happened has happened; the event is a dead letter."""
    model = ReadModel("occupancy", version=1, attempts=1)
    model.tables(make_nights)

    @model.handle(Booked, category=BOOKINGS)
    def booked(event: Booked, context: ReadContext) -> None:
        raise Reject("full")

    book(store, 1)
    consumers.drain(model, address(connection))
    assert [state for _, _, state in letters(connection)] == ["dead"]
    assert list(store.read_category("occupancy_1")) == []


def test_two_versions_are_made_beside_each_other(connection, store):
    """The views show the first until they are turned."""
    book(store, 1, 2)
    consumers.drain(one_by_one(1), address(connection))
    book(store, 2)
    consumers.drain(by_sets(2), address(connection))
    assert nights(connection) == {1: 1, 2: 1}
    assert nights(connection, "occupancy_2") == {1: 1, 2: 2}


def test_two_members_share_the_partitions(connection, store):
    """Each event changes the rows once, whoever handles it."""
    model = one_by_one()
    consumers.drain(model, address(connection))
    connection.execute("DELETE FROM reservation.members")
    done = invoke_cli("partitions", FIRST, "4", "--database-url", address(connection), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    with members(component(model), address(connection), BOOKINGS, size=4):
        book(store, *[n % 5 for n in range(200)])
        until(lambda: sum(nights(connection).values()) == 200)
    assert nights(connection) == dict.fromkeys(range(5), 40)


def test_a_process_that_is_killed_changes_rows_once(connection, store, tmp_path):
    """The next one begins where the last commit was."""
    kills = tmp_path / "kills"
    kills.touch()
    book(store, 1, 2)
    book(store, 3, rooms=99)
    book(store, 4, booking="last")
    env = os.environ | {"KILLS": str(kills)}
    with Started(address(connection), app=FIRST, cwd=ROOT, env=env):
        until(lambda: _has_views(connection) and 4 in nights(connection))
    assert not kills.exists()
    assert nights(connection) == {1: 1, 2: 1, 3: 99, 4: 1}


def _has_views(connection):
    ((found,),) = connection.execute("SELECT to_regclass('occupancy.nights')").fetchall()
    return found is not None


def test_the_tables_are_made_once(connection):
    """Many processes may start a new version at the same moment."""
    made = []
    model = ReadModel("occupancy", version=1)

    @model.tables
    def tables(connection) -> None:
        made.append(1)
        make_nights(connection)

    model.handle(Booked, category=BOOKINGS)(lambda event, context: None)
    for _ in range(2):
        consumers.drain(model, address(connection))
    assert made == [1]


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        (lambda connection: connection.execute("SELECT 1 / 0"), "raised DivisionByZero"),
        (lambda connection: connection.execute("COMMIT"), "ended the transaction"),
        (lambda connection: None, "made none in the schema occupancy_1"),
        (lambda connection: connection.execute("CREATE TABLE a (b int)"), "without a primary key"),
    ],
)
def test_tables_that_cannot_be_made_are_refused_at_the_start(connection, tables, problem):
    """Nothing is left of the version."""
    model = ReadModel("occupancy", version=1)
    model.tables(tables)
    model.handle(Booked, category=BOOKINGS)(lambda event, context: None)
    with pytest.raises(DeclarationError, match=problem):
        consumers.drain(model, address(connection))
    consumers.drain(one_by_one(), address(connection))


@pytest.mark.parametrize("schema", ["occupancy", "occupancy_1"])
def test_a_schema_of_somebody_else_is_left_alone(connection, schema):
    """It may have the name by chance."""
    connection.execute(f"CREATE SCHEMA {schema} CREATE TABLE theirs (id int PRIMARY KEY)")
    with pytest.raises(StoreError, match=f"The schema {schema} is in use for something else"):
        consumers.drain(one_by_one(), address(connection))
    connection.execute(f"DROP TABLE {schema}.theirs")
    consumers.drain(one_by_one(), address(connection))


def test_tables_that_are_gone_are_not_made_anew_behind_a_position(connection, store):
    """They would lack the events up to it; once that is removed, the views are made again too."""
    book(store, 1)
    consumers.drain(one_by_one(), address(connection))
    connection.execute("DROP SCHEMA occupancy_1 CASCADE")
    with pytest.raises(StoreError, match="reservation models drop occupancy 1"):
        consumers.drain(one_by_one(), address(connection))
    remove(connection, 1)
    consumers.drain(one_by_one(), address(connection))
    assert nights(connection) == nights(connection, "occupancy_1") == {1: 1}


def test_a_version_that_is_removed_while_its_process_hangs_is_not_filled(connection, store):
    """No event becomes a dead letter, and the process ends with the way out."""
    model, calls, go_on = ReadModel("occupancy", version=2, attempts=1), [], threading.Event()
    model.tables(make_nights)

    @model.handle(Booked, category=BOOKINGS)
    def booked(event: Booked, context: ReadContext) -> None:
        calls.append(event)
        assert go_on.wait(PATIENCE)
        take(context, event.night, event.rooms)

    consumers.drain(one_by_one(), address(connection))
    book(store, 1, 2)

    def remove_meanwhile():
        with hosted(model, address(connection)) as thread:
            try:
                until(lambda: calls)
                let_expire(connection)
                remove(connection, 2)
            finally:
                go_on.set()
            thread.join(PATIENCE)

    with pytest.raises(StoreError, match="was removed meanwhile; start the version again"):
        remove_meanwhile()
    assert letters(connection) == []
    consumers.drain(model, address(connection))
    assert nights(connection, "occupancy_2") == {1: 1, 2: 1}


def test_it_is_checked_and_shown_like_a_component(connection, store):
    """Before it is deployed, and while it runs."""
    book(store, 1, 2)
    at = ["--json", "--database-url", address(connection)]
    consumers.drain(one_by_one(), address(connection))
    done = invoke_cli("check", FIRST, *at, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    types = {one["type"]: one for one in json.loads(done.stdout)["types"]}
    assert (types["Booked"]["messages"], types["Booked"]["unreadable"]) == (2, 0)
    (status,) = json.loads(invoke_cli("status", FIRST, *at, cwd=ROOT).stdout)["partitions"]
    assert (status["consumer"], status["category"], status["position"]) == (
        "occupancy_1",
        BOOKINGS,
        2,
    )


@pytest.mark.parametrize("make", [one_by_one, by_sets])
def test_each_event_is_handled_in_a_span_of_its_own_trace(connection, store, make):
    """Also where one call handles several."""
    with recording() as spans:
        for n in range(3):
            book(store, n, rooms=13 if n == 1 else 1, booking=f"b{n}")
        consumers.drain(make(attempts=1), address(connection))
    found = [span for span in spans.all() if span.name == f"process {BOOKINGS}"]
    outcomes = {span.attributes["reservation.message.global_position"]: span for span in found}
    assert [outcomes[n].attributes["reservation.outcome"] for n in (1, 2, 3)] == [
        "handled",
        "failed",
        "handled",
    ]
    assert len({span.trace for span in outcomes.values()}) == 3


def test_events_are_read_under_former_names_and_shapes(connection, store):
    """As the component that wrote them declares it."""
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, 'booking-1', 'Reserved',"
        ' \'{"bookingId": "b", "day": 4}\')'
    )

    @dataclass(frozen=True)
    class Taken:
        booking_id: str
        night: int

    model = ReadModel("occupancy", version=1)
    model.tables(make_nights)
    model.handle(Taken, category=BOOKINGS)(lambda event, context: take(context, event.night, 1))
    model.message(
        Taken,
        former_names="Reserved",
        version=2,
        upcast=lambda data: {"bookingId": data["bookingId"], "night": data["day"]},
    )
    consumers.drain(model, address(connection))
    assert nights(connection) == {4: 1}


def test_failed_attempts_are_reported(connection, store):
    """As for a component."""
    model, seen = one_by_one(attempts=1), []
    model.on_error(lambda error, attempt: seen.append((type(error), attempt.entity)))
    book(store, 1, rooms=13, booking="b0")
    consumers.drain(model, address(connection))
    assert seen == [(ValueError, "booking-b0")]
