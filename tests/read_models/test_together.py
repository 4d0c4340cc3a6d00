"""The statements of a batch's calls are sent together; the rows and letters stay as they are."""

from dataclasses import dataclass

import psycopg
import pytest
from sqlalchemy import text

import consumers
from reservation import ReadContext, ReadModel, Write
from tests.apps.bank import address
from tests.apps.occupancy import BOOKINGS, Booked, book, make_nights, nights, take
from tests.consumers.builders import stored_letters
from tests.consumers.test_handlers_connection import ERRORS, FAILING, HARMLESS, TRICKS
from tests.support.consuming import hosted, until
from tests.support.tracing import recording


@dataclass(frozen=True)
class Did:
    job_id: str
    trick: str = ""


def job_with(tricks, **options):
    """Return a model with a row for each event, whose handler does what its event says."""
    model = ReadModel("jobs", version=1, attempts=1, **options)
    model.tables(lambda c: c.execute("CREATE TABLE jobs (id text PRIMARY KEY, n int NOT NULL)"))

    @model.handle(Did, category="job")
    def did(event: Did, context: ReadContext) -> None:
        context.connection.execute("INSERT INTO jobs VALUES (%s, 1)", [event.job_id])
        if event.trick:
            tricks[event.trick](context.connection)

    return model


def write(store, *events):
    store.write_batch([Write(event, f"job-{event.job_id}") for event in events])


def jobs(connection):
    return dict(connection.execute("SELECT id, n FROM jobs_1.jobs").fetchall())


def dead(connection):
    return {one.stream_name.removeprefix("job-") for one in stored_letters(connection)}


def test_a_batch_of_single_events_takes_few_round_trips(connection, store, exchanges):
    """A handler that executes one statement is not waited for at each of them."""
    write(store, *(Did(str(n)) for n in range(1000)))
    consumers.drain(job_with({}), address(connection))
    assert len(exchanges) < 100
    assert len(jobs(connection)) == 1000


def test_a_failure_slows_down_only_its_own_batch(connection, store, exchanges):
    """The events of other batches are not undone one by one."""
    write(store, *(Did(f"a{n}") for n in range(50)), Did("bad", "fails"))
    write(store, *(Did(f"b{n}") for n in range(1000)))
    consumers.drain(job_with({"fails": fails}), address(connection), batch_size=100)
    assert len(exchanges) < 800
    assert len(jobs(connection)) == 1050


@pytest.mark.parametrize("count", [1, 30])
def test_each_event_has_its_span_where_none_fails(connection, store, count):
    """With the statements of its handler in it."""
    with recording() as spans:
        write(store, *(Did(str(n)) for n in range(count)))
        consumers.drain(job_with({}), address(connection))
    found = [span for span in spans.all() if span.name == "process job"]
    assert len(found) == min(count, 20)  # of a batch


def test_whatever_a_handler_does_to_the_connection_is_a_failure_of_its_event_alone(
    connection, store, database_url
):
    """Others of the batch are handled once, as where each statement is sent at once."""
    tricks = [*FAILING, *HARMLESS]
    number = {trick: f"trick-{n}" for n, trick in enumerate(tricks)}
    others = [f"other-{n}" for n in range(len(tricks))]
    for name, (trick, key) in zip(others, number.items(), strict=True):
        write(store, Did(name), Did(key, trick))
    wrong = {number[trick] for trick in FAILING}
    right = {*others, *(number[trick] for trick in HARMLESS)}
    with hosted(job_with(TRICKS), database_url) as thread:
        until(lambda: dead(connection) == wrong and right <= set(jobs(connection)), thread)
        write(store, Did("last"))
        until(lambda: "last" in jobs(connection), thread)
    assert jobs(connection) == dict.fromkeys(right | {"last"}, 1)
    errors = {one.stream_name: one.error for one in stored_letters(connection)}
    for trick, error in ERRORS.items():
        assert error in errors[f"job-{number[trick]}"]


def fails(connection):
    connection.execute("INSERT INTO jobs VALUES (%s, NULL)", ["null"])


def ends_the_session(connection):
    connection.execute("SELECT pg_terminate_backend(pg_backend_pid()) WHERE %s", [True])


@pytest.mark.parametrize("trick", [fails, ends_the_session])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_statement_that_fails_later_is_a_failure_of_its_own_event(
    connection, store, database_url, trick, size
):
    """Events before and after it are handled once, and only the one that is to blame is dead."""
    write(store, *(Did(f"a{n}") for n in range(30)), Did("bad", "trick"))
    write(store, *(Did(f"b{n}") for n in range(30)))
    model = job_with({"trick": trick})
    with hosted(model, database_url, batch_size=size) as thread:
        until(lambda: dead(connection) == {"bad"} and len(jobs(connection)) == 60, thread)
    assert set(jobs(connection).values()) == {1}
    (letter,) = stored_letters(connection)
    assert (letter.state, letter.reason) == ("dead", "handler")


def test_a_handler_learns_how_many_rows_it_has_changed(connection, store):
    """Also where earlier statements wait to be sent."""
    model = ReadModel("occupancy", version=1)
    model.tables(make_nights)

    @model.handle(Booked, category=BOOKINGS)
    def booked(event: Booked, context: ReadContext) -> None:
        add = "UPDATE nights SET taken = taken + %s WHERE night = %s"
        if not context.connection.execute(add, [event.rooms, event.night]).rowcount:
            take(context, event.night, event.rooms)

    book(store, *[n % 7 for n in range(210)])
    consumers.drain(model, address(connection))
    assert nights(connection) == dict.fromkeys(range(7), 30)


def test_a_handler_catches_the_error_of_its_own_statement(connection, store):
    """In a block of its own it is raised where it belongs, and no call is made twice."""
    model, caught = ReadModel("occupancy", version=1), []
    model.tables(make_nights)

    @model.handle(Booked, category=BOOKINGS)
    def booked(event: Booked, context: ReadContext) -> None:
        insert = "INSERT INTO nights VALUES (%s, 1)"
        try:
            with context.connection.transaction():
                context.connection.execute(insert, [event.night])
        except psycopg.errors.UniqueViolation:
            take(context, event.night, 10)
            caught.append(event.night)

    book(store, 1, 2, 1, 3, 2)
    assert consumers.drain(model, address(connection)).counts == {"handled": 5}
    assert nights(connection) == {1: 11, 2: 11, 3: 1}
    assert caught == [1, 2]


def test_handlers_use_an_orm_beside_statements_of_their_own(connection, store):
    """What is executed in a block of a session is in its place among the others."""
    model = ReadModel("occupancy", version=1, attempts=1)
    model.tables(make_nights)

    @model.handle(Booked, category=BOOKINGS)
    def booked(event: Booked, context: ReadContext) -> None:
        take(context, event.night, event.rooms)
        with context.session() as session:
            double = text("UPDATE nights SET taken = taken * 2 WHERE night = :night")
            assert session.execute(double, {"night": event.night}).rowcount == 1
        take(context, event.night, event.rooms)
        if event.rooms == 13:
            raise ValueError("unlucky")

    book(store, 1, 2, 1)
    book(store, 3, rooms=13, booking="bad")
    book(store, 1, booking="last")
    assert consumers.drain(model, address(connection)).counts == {"handled": 4, "dead": 1}
    assert nights(connection) == {1: 21, 2: 3}
