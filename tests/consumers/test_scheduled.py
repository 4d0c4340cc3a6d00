"""Messages that handlers schedule, and the consumers that write them when they are due."""

import random
import statistics
import threading
from datetime import UTC, datetime, timedelta

import pytest
from psycopg.types.json import Jsonb

from reservation import Cancellation, Component, Metadata
from reservation.errors import HandlerError
from reservation.strategies import MessageIdInEvents, Processed, StateBased
from reservation.testing import NotDeterministicError, check_deterministic, pass_time
from tests.apps.bank import drain
from tests.apps.unpaid import SENT, Expire, Order, Pay, Place, Placed, orders
from tests.store.builders import switch_notices, write_due
from tests.store.test_scheduling import PAST, refusing, rows
from tests.support.consuming import hosted, until
from tests.support.started import PATIENCE

ORDER = f"{SENT}-1"
HALF_AN_HOUR = timedelta(minutes=30)


def types(store, stream_name="order-1"):
    """Return the types of the messages of a stream, in order."""
    return [message.type for message in store.read_stream(stream_name)]


def set_back(connection):
    """Set all positions back, as if nothing had been handled."""
    connection.execute("UPDATE reservation.moves SET position = 0, message_id = NULL")


def scheduling(once=None, **when):
    """Return a component whose handler does nothing but schedule a command."""
    component = Component("order", entity=Order, id="order_id")

    @component.handle(Place, once=once)
    def place(command, entity, context):
        context.write(Expire(command.order_id), "expiry:command-1", **when)

    return component


def test_an_order_that_is_not_paid_in_time_expires(connection, store, database_url):
    """What a handler schedules is due a delay after its message, and follows that message."""
    component = orders()
    for number in ("1", "2"):
        store.write(
            Place(number),
            f"{SENT}-{number}",
            metadata=Metadata(correlation_stream_name="web-7", properties={"user": 7}),
        )
    drain(connection, component)
    placed = next(store.read_stream(ORDER))
    due = placed.time.replace(tzinfo=UTC) + HALF_AN_HOUR
    assert rows(connection, "due_at, stream_name, type, data")[0] == (
        due,
        ORDER,
        "Expire",
        {"orderId": "1"},
    )
    assert types(store) == ["Placed"]
    store.write(Pay("2"), f"{SENT}-2")
    drain(connection, component)
    assert pass_time(database_url, "29m") == 0
    assert pass_time(database_url, "1m") == 2
    drain(connection, component)
    assert (types(store), types(store, "order-2")) == (["Placed", "Expired"], ["Placed", "Paid"])
    expire = list(store.read_stream(ORDER))[1]
    assert (expire.type, expire.metadata) == ("Expire", placed.follow_metadata())
    assert expire.metadata.correlation_stream_name == "web-7"
    assert rows(connection) == []


@pytest.mark.parametrize(
    ("problem", "when"),
    [
        ("both at= and after=", {"at": PAST, "after": "1s"}),
        ("is negative", {"after": "-30m"}),
        ("has no time zone", {"at": datetime(2026, 1, 1)}),  # noqa: DTZ001  it is refused
        ("cannot have an expected version", {"after": "1s", "expected_version": 3}),
    ],
)
@pytest.mark.parametrize("once", [None, StateBased()], ids=["none", "state"])
def test_a_handler_that_schedules_wrongly_fails_in_one_line(problem, when, once):
    """What cannot be scheduled is a fault of the handler, named in one line."""
    with pytest.raises(HandlerError, match=problem) as failed:
        check_deterministic(scheduling(once=once, **when), Place("1"))
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    "once",
    [None, MessageIdInEvents(), Processed(), StateBased()],
    ids=["none", "message-id", "processed", "state"],
)
def test_a_batch_that_is_repeated_schedules_the_same_once(connection, store, database_url, once):
    """A repeat schedules nothing again: not before, not after writing, not after cancelling."""
    component = Component("order", entity=Order, id="order_id")

    @component.handle(Place, once=once)
    def place(command, entity, context):
        after = "10m" if command.order_id == "written" else "30m"
        context.write(Expire(command.order_id), f"expiry:command-{command.order_id}", after=after)

    for name in ("waiting", "written", "cancelled"):
        store.write(Place(name), f"{SENT}-{name}")
    drain(connection, component)
    ids = {data["orderId"]: id_ for data, id_ in rows(connection, "data, id")}
    assert pass_time(database_url, "10m") == 1
    assert store.cancel(ids["cancelled"]) is Cancellation.CANCELLED
    for _ in range(2):
        set_back(connection)
        drain(connection, component)
    assert pass_time(database_url, "20m") == 1
    written = [message.id for message in store.read_category("expiry:command")]
    assert written == [str(ids["written"]), str(ids["waiting"])]
    assert connection.execute("SELECT count(*) FROM reservation.dead_letters").fetchone() == (0,)


@pytest.mark.parametrize("once", [None, StateBased()], ids=["event", "state"])
def test_a_repeat_knows_a_cancelled_message_that_was_pruned(connection, store, once):
    """What shows that a message was handled is its event or its state, so a row may go."""
    component = scheduling(after="30m", once=once)
    store.write(Place("1"), ORDER)
    drain(connection, component)
    connection.execute("DELETE FROM reservation.scheduled")
    set_back(connection)
    drain(connection, component)
    assert rows(connection) == []
    assert types(store) == ([] if once else ["PseudoEvent"])


def test_a_message_of_which_the_handler_has_written_one_before_keeps_its_id(connection, store):
    """A handler that begins to schedule what it wrote does not write it twice."""
    store.write(Place("1"), ORDER)
    component = Component("order", entity=Order, id="order_id")

    @component.handle(Place, once=StateBased())
    def place(command, entity, context):
        context.write(Expire("1"), "expiry:command-1")

    drain(connection, component)
    set_back(connection)
    drain(connection, scheduling(at=PAST, once=StateBased()))
    assert write_due(connection).written == 0
    assert types(store, "expiry:command-1") == ["Expire"]


def test_a_state_schedules_what_its_first_handling_did(connection, store):
    """A message that is handled again schedules nothing more, whatever its handler says now."""
    store.write(Place("1"), ORDER)
    drain(connection, scheduling(after="30m", once=StateBased()))
    before = rows(connection, "id, due_at")
    assert len(before) == 1
    set_back(connection)
    drained = drain(connection, scheduling(after="45m", once=StateBased()))
    assert drained.counts["differing"] == 1
    assert rows(connection, "id, due_at") == before
    connection.execute("DELETE FROM reservation.scheduled")  # as after it was cancelled
    set_back(connection)
    drained = drain(connection, scheduling(after="30m", once=StateBased()))
    assert drained.counts["redelivered"] == 1
    assert rows(connection) == []


def test_a_handler_that_fails_schedules_nothing(connection, store):
    """What a handler scheduled goes with the rest of what it did."""
    component = Component("order", entity=Order, id="order_id", attempts=1)

    @component.handle(Place, once=None)
    def place(command, entity, context):
        context.write(Expire("1"), "expiry:command-1", after="1h")
        if command.order_id == "bad":
            raise ValueError

    store.write(Place("bad"), f"{SENT}-1")
    store.write(Place("2"), f"{SENT}-2")
    assert drain(connection, component).counts["dead"] == 1
    assert len(rows(connection)) == 1


def test_an_id_that_is_in_use_for_other_content_is_a_fault_of_the_message(connection, store):
    """A handler that schedules other content under a known id makes a dead letter."""
    store.write(Place("1"), ORDER)
    drain(connection, scheduling(after="30m"))
    connection.execute("UPDATE reservation.scheduled SET data = %s", [Jsonb({"orderId": "9"})])
    connection.execute("DELETE FROM message_store.messages WHERE type = 'PseudoEvent'")
    set_back(connection)
    assert drain(connection, scheduling(after="30m")).counts["dead"] == 1


def test_draining_writes_what_is_due(connection, store):
    """A drain writes what is due when it begins, and handles it."""
    store.write(Place("1"), ORDER, at=PAST)
    assert drain(connection, orders()).counts["handled"] == 1
    assert types(store) == ["Placed"]


def test_a_test_sees_what_a_handler_schedules():
    """`check_deterministic` returns what was scheduled, with its time, and compares it."""
    done = check_deterministic(orders(), Place("1"))
    (one,) = done.scheduled
    assert (one.message, one.stream_name) == (Expire("1"), ORDER)
    assert one.due == done.context.time + HALF_AN_HOUR
    assert (done.events, done.context.writes) == ([Placed("1")], [])

    component = Component("order", entity=Order, id="order_id")

    @component.handle(Place, once=None)
    def place(command, entity, context):
        at = datetime.now(UTC) + timedelta(seconds=random.random())
        context.write(Expire("1"), "expiry:command-1", at=at)

    with pytest.raises(NotDeterministicError, match=r"Expire, was different .*due time differs"):
        check_deterministic(component, Place("1"))


def test_time_that_cannot_pass_is_refused(database_url, connection, store):
    """Time does not go backwards, and what the log refuses is an error of the test."""
    with pytest.raises(ValueError, match="is negative"):
        pass_time(database_url, "-1s")
    store.write(Place("1"), ORDER, after="1h")
    with refusing(connection, "true"), pytest.raises(Exception, match="refuses 1 message"):
        pass_time(database_url, "1h")


# Consumers that run


@pytest.mark.parametrize(
    ("notices", "delays"),
    [("on", ["500ms"] * 5), ("off", ["2s", "2100ms", "2200ms"])],
    ids=["notices", "polling"],
)
def test_an_idle_consumer_writes_on_time(connection, store, database_url, notices, delays):
    """An idle process that has notice, or had the time to look, writes at once, and never early.

    Otherwise it would take more than a second, until it looks next.
    """
    switch_notices(connection, notices)
    other = Component("other", id="order_id")
    other.handle(Pay, once=None)(lambda command, entity, context: None)
    with hosted(other, database_url) as thread:
        for n, delay in enumerate(delays):
            store.write(Place("1"), f"{SENT}-{n}", after=delay)
        due = [due for (due,) in rows(connection, "due_at")]
        until(lambda: len(list(store.read_category(SENT))) == len(delays), thread)
    written = [message.time.replace(tzinfo=UTC) for message in store.read_category(SENT)]
    late = [(at - when).total_seconds() for at, when in zip(written, due, strict=True)]
    assert min(late) >= 0
    assert statistics.median(late) < 1


def test_a_slow_handler_does_not_hold_up_the_schedule(connection, store, database_url):
    """A process whose only handler is busy writes what is due meanwhile."""
    component = Component("other", id="order_id")
    waits = threading.Event()

    @component.handle(Pay, once=None)
    def pay(command, entity, context):
        waits.set()
        until(lambda: list(store.read_stream(ORDER)))

    with hosted(component, database_url):
        store.write(Pay("1"), "other:command-1")
        assert waits.wait(PATIENCE)
        store.write(Place("1"), ORDER, after="10ms")
        until(lambda: list(store.read_stream(ORDER)))


def test_a_busy_consumer_writes_between_batches(connection, store, database_url):
    """A consumer that always has messages writes what is due as well."""
    component = Component("other", id="order_id")
    over = threading.Event()

    @component.handle(Pay, once=None)
    def pay(command, entity, context):
        if not over.is_set():
            context.write(Pay("1"), "other:command-1")

    with hosted(component, database_url):
        store.write(Pay("1"), "other:command-1")
        store.write(Place("1"), ORDER, after="50ms")
        until(lambda: list(store.read_stream(ORDER)))
        over.set()
