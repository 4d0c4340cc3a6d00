"""Messages that handlers schedule, and the consumers that write them when they are due."""

import contextlib
import json
import random
import statistics
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from psycopg.types.json import Jsonb

import consumers
from consumers.batch import effects
from consumers.loop.schedule import Schedule
from consumers.runtime.observability.logs import Log
from consumers.runtime.observability.telemetry import Telemetry
from reservation import (
    Cancellation,
    Component,
    MessageIdInEvents,
    Metadata,
    Processed,
    StateBased,
    connect,
)
from reservation.errors import HandlerError
from reservation.store.notifications import set_notices
from reservation.store.writing.scheduling import write_due
from reservation.testing import NotDeterministicError, check_deterministic, pass_time
from tests.bank import batch, drain
from tests.chance import seeds
from tests.commands import invoke_cli
from tests.processes import EXAMPLES, Started
from tests.test_scheduling import PAST, refusing, rows
from tests.unpaid import SENT, Expire, Order, Pay, Place, Placed, orders
from tests.watching import Watched, until

ORDER = f"{SENT}-1"
HALF_AN_HOUR = timedelta(minutes=30)
ROOT = EXAMPLES.parent


def types(store, stream_name="order-1"):
    """Return the types of the messages of a stream, in order."""
    return [message.type for message in store.read_stream(stream_name)]


def set_back(connection):
    """Set all positions back, as if nothing had been handled."""
    connection.execute("UPDATE reservation.positions SET position = 0, message_id = NULL")


def scheduling(**when):
    """Return a component whose handler does nothing but schedule a command."""
    component = Component("order", entity=Order, id="order_id")

    @component.handle(Place, **when.pop("declared", {}))
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
        ("can expect no version of its stream", {"after": "1s", "expected_version": 3}),
    ],
)
@pytest.mark.parametrize("declared", [{}, {"once": StateBased()}], ids=["default", "state"])
def test_a_handler_that_schedules_wrongly_fails_in_one_line(problem, when, declared):
    """What cannot be scheduled is a fault of the handler, named in one line."""
    with pytest.raises(HandlerError, match=problem) as failed:
        check_deterministic(scheduling(declared=declared, **when), Place("1"))
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    "once",
    [None, MessageIdInEvents(), Processed(), StateBased()],
    ids=["none", "message-id", "processed", "state"],
)
@pytest.mark.parametrize("when", ["before", "after", "cancelled"])
def test_a_batch_that_is_repeated_schedules_the_same_once(
    connection, store, database_url, once, when
):
    """A repeat schedules nothing again: not before, not after writing, not after cancelling."""
    component = scheduling(after="30m", declared={} if once is None else {"once": once})
    store.write(Place("1"), ORDER)
    drain(connection, component)
    ((named,),) = rows(connection, "id")
    if when == "after":
        assert pass_time(database_url, "30m") == 1
    if when == "cancelled":
        assert store.cancel(named) is Cancellation.CANCELLED
    for _ in range(2):
        set_back(connection)
        drain(connection, component)
    assert pass_time(database_url, "30m") == (when == "before")
    written = [message.id for message in store.read_category("expiry:command")]
    assert written == ([] if when == "cancelled" else [str(named)])
    assert connection.execute("SELECT count(*) FROM reservation.dead_letters").fetchone() == (0,)


@pytest.mark.parametrize("once", [None, StateBased()], ids=["event", "state"])
def test_a_repeat_knows_a_cancelled_message_that_was_pruned(connection, store, once):
    """What shows that a message was handled is its event or its state, so a row may go."""
    component = scheduling(after="30m", declared={} if once is None else {"once": once})
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
    drain(connection, scheduling(at=PAST, declared={"once": StateBased()}))
    assert write_due(connection).written == 0
    assert types(store, "expiry:command-1") == ["Expire"]


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_state_that_was_stored_before_a_death_schedules_once(
    connection, store, monkeypatch, is_repeated
):
    """With StateBased what is scheduled is stored with the state, and follows after a death."""
    component = scheduling(after="30m", declared={"once": StateBased()})
    store.write(Place("1"), ORDER)
    publish = effects._publish

    def die(*arguments, **named):
        if is_repeated:
            publish(*arguments, **named)
        raise RuntimeError

    claimed = batch(connection, SENT, component)
    with monkeypatch.context() as patched:
        patched.setattr(effects, "_publish", die)
        with pytest.raises(RuntimeError):
            claimed.run(10)
    assert rows(connection) == []
    assert connection.execute("SELECT count(*) FROM reservation.states").fetchone() == (1,)
    drain(connection, component)
    ((due, stream),) = rows(connection, "due_at, stream_name")
    sent = next(store.read_stream(ORDER)).time.replace(tzinfo=UTC)
    assert (due, stream) == (sent + HALF_AN_HOUR, "expiry:command-1")


def test_a_state_publishes_what_it_stored_also_if_the_handler_changes(connection, store):
    """After a death before the publication, what the first handling stored is scheduled."""
    store.write(Place("1"), ORDER)
    drain(connection, scheduling(after="30m", declared={"once": StateBased()}))
    before = rows(connection, "id, due_at")
    connection.execute("DELETE FROM reservation.scheduled")
    connection.execute("UPDATE reservation.states SET published = false")
    set_back(connection)
    drained = drain(connection, scheduling(after="45m", declared={"once": StateBased()}))
    assert drained.counts["differing"] == 1
    assert rows(connection, "id, due_at") == before


def test_a_handler_that_fails_schedules_nothing(connection, store):
    """What a handler scheduled goes with the rest of what it did."""
    component = Component("order", entity=Order, id="order_id", attempts=1)

    @component.handle(Place)
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
    store.schedule(Place("1"), ORDER, at=PAST)
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

    @component.handle(Place)
    def place(command, entity, context):
        at = datetime.now(UTC) + timedelta(seconds=random.random())
        context.write(Expire("1"), "expiry:command-1", at=at)

    with pytest.raises(NotDeterministicError, match=r"Expire, was different .*due time differs"):
        check_deterministic(component, Place("1"))


def test_time_that_cannot_pass_is_refused(database_url, connection, store):
    """Time does not go backwards, and what the log refuses is an error of the test."""
    with pytest.raises(ValueError, match="is negative"):
        pass_time(database_url, "-1s")
    store.schedule(Place("1"), ORDER, after="1h")
    with refusing(connection, "true"), pytest.raises(Exception, match="refuses 1 message"):
        pass_time(database_url, "1h")


# The command line and metrics


@pytest.fixture
def cli(database_url):
    """Give a function that runs a command to its end."""

    def run(*arguments):
        env = {"RESERVATION_DATABASE_URL": database_url, "COLUMNS": "300"}
        return invoke_cli(*arguments, env=env)

    return run


def test_the_command_lists_what_is_scheduled(connection, store, cli):
    """The list shows each message with its time, its state and why the log refuses it."""
    assert cli("scheduled", "list").stdout == "Nothing is scheduled.\n"
    later = store.schedule(Place("1"), ORDER, after="1h")
    due = store.schedule(Pay("2"), "payment:command-2", at=PAST)
    gone = store.schedule(Expire("3"), ORDER, after="2h")
    store.cancel(gone)
    refused = store.schedule(Place("4"), ORDER, at=PAST)
    with refusing(connection, "true"):
        connection.execute(
            "UPDATE reservation.scheduled SET due_at = 'tomorrow' WHERE id = %s", [due]
        )
        write_due(connection)
    connection.execute("UPDATE reservation.scheduled SET due_at = %s WHERE id = %s", [PAST, due])

    listed = json.loads(cli("scheduled", "list", "--json").stdout)["scheduled"]
    assert [(one["id"], one["state"]) for one in listed] == [
        (str(due), "overdue"),
        (str(refused), "refused"),
        (str(later), "scheduled"),
    ]
    assert (listed[1]["attempts"], listed[1]["error"]) == (1, "not this one")
    every = json.loads(cli("scheduled", "list", "--all", "--json").stdout)["scheduled"]
    assert every[-1]["state"] == "cancelled"
    assert every[-1]["cancelledAt"] is not None
    table = cli("scheduled", "list", "--category", "order:command").stdout
    assert str(later) in table
    assert "not this one" in table
    assert str(due) not in table
    assert "more than these 1;" in cli("scheduled", "list", "--limit", "1").stderr


def test_the_command_cancels_and_says_what_it_could_not(connection, store, cli):
    """What was written or is unknown is named, with the exit status 1."""
    first = store.schedule(Place("1"), ORDER, after="1h")
    written = store.schedule(Place("2"), ORDER, at=PAST)
    write_due(connection)
    done = cli("scheduled", "cancel", str(first))
    assert (done.returncode, done.stdout) == (0, f"{first}: cancelled\n")
    done = cli("scheduled", "cancel", str(written), str(uuid.UUID(int=7)), "--json")
    assert done.returncode == 1
    assert [one["outcome"] for one in json.loads(done.stdout)["changed"]] == ["written", "unknown"]
    assert f"Not cancelled: {written}, {uuid.UUID(int=7)}" in done.stderr


def test_the_status_shows_what_is_due_next_and_what_is_overdue(connection, store, cli):
    """A line says how much is scheduled, and another one what is overdue, and why."""
    assert "scheduled" not in cli("status").stdout.lower()
    store.schedule(Place("1"), ORDER, at=datetime(2100, 1, 2, tzinfo=UTC))
    shown = cli("status").stdout
    assert "Scheduled: 1 message of the store; the next is due at 2100-01-0" in shown
    assert "Overdue" not in shown
    ago = datetime.now(UTC) - timedelta(minutes=3)
    store.schedule(Place("2"), ORDER, at=ago)
    with refusing(connection, "true"):
        write_due(connection)
    shown = cli("status").stdout
    assert "Overdue: 1 of them, the oldest for 3 min" in shown
    assert "the log refuses 1" in shown
    assert json.loads(cli("status", "--json").stdout)["scheduled"] == {
        "messages": 2,
        "nextAt": "2100-01-02T00:00:00+00:00",
        "overdue": 1,
        "overdueSince": ago.isoformat(),
        "refused": 1,
    }


def test_cancelled_messages_are_pruned_on_request(connection, store, cli):
    """Only what was cancelled long enough ago is removed, and only on request."""
    for _ in range(3):
        store.cancel(store.schedule(Place("1"), ORDER, after="1h"))
    kept = store.schedule(Place("2"), ORDER, after="1h")
    connection.execute(
        "UPDATE reservation.scheduled SET cancelled_at = now() - interval '91 days' "
        "WHERE cancelled_at IS NOT NULL AND number > 1"
    )
    assert "scheduled" not in cli("prune", "--apply").stdout
    older = ("prune", "--cancelled-older-than", "90d")
    assert "scheduled messages of the store: 2 messages would be removed" in cli(*older).stdout
    assert len(rows(connection)) == 4
    assert "2 messages removed" in cli(*older, "--apply", "--batch-size", "1").stdout
    assert len(rows(connection)) == 2
    assert store.cancel(kept) is Cancellation.CANCELLED


@pytest.mark.faults
def test_metrics_show_what_is_scheduled_and_overdue(connection, store, database_url):
    """The host's metrics count what waits, what was written and refused, and what is overdue."""
    store.schedule(Place("1"), ORDER, after="1h")
    store.schedule(Place("2"), ORDER, at=datetime.now(UTC) - timedelta(minutes=5))
    with (
        refusing(connection, "NEW.type = 'Place'"),
        Watched(database_url, app="tests.unpaid:order", cwd=ROOT) as started,
    ):

        def figure(name):
            return started.figures().get((f"reservation_scheduled_{name}", "order", SENT), 0)

        until(lambda: figure("refused_total") >= 1)
        until(lambda: figure("messages") == 2)
        assert 300 <= figure("overdue_seconds") < 400
        store.schedule(Pay("3"), f"{SENT}-3", at=PAST)
        until(lambda: figure("written_total") == 1)
        assert started.stop() == 0


# Consumers that run


@contextlib.contextmanager
def running(component, database_url):
    """Run a component's consumers in this process."""
    stop = threading.Event()
    thread = threading.Thread(
        target=consumers.run, args=(component, database_url), kwargs={"stop": stop}
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    ("notices", "delay"), [(True, "50ms"), (False, "2s")], ids=["notices", "polling"]
)
def test_an_idle_consumer_writes_on_time(connection, store, database_url, notices, delay):
    """An idle process that has notice, or had the time to look, writes at once, and never early.

    Otherwise it would take more than a second, until it looks next.
    """
    set_notices(connection, notices)
    other = Component("other", id="order_id")

    @other.handle(Pay)
    def pay(command, entity, context):
        return None

    late = []
    with running(other, database_url):
        for n in range(5 if notices else 3):
            store.schedule(Place("1"), f"{SENT}-{n}", after=delay)
            ((due,),) = rows(connection, "due_at")
            (message,) = until(lambda n=n: list(store.read_stream(f"{SENT}-{n}")))
            late.append((message.time.replace(tzinfo=UTC) - due).total_seconds())
    assert min(late) >= 0
    assert statistics.median(late) < 0.5


def test_a_slow_handler_does_not_hold_up_the_schedule(connection, store, database_url):
    """A process whose only handler is busy writes what is due meanwhile."""
    component = Component("other", id="order_id")
    waits = threading.Event()

    @component.handle(Pay)
    def pay(command, entity, context):
        waits.set()
        until(lambda: list(store.read_stream(ORDER)))

    with running(component, database_url):
        store.write(Pay("1"), "other:command-1")
        assert waits.wait(60)
        store.schedule(Place("1"), ORDER, after="10ms")
        until(lambda: list(store.read_stream(ORDER)))


def test_a_busy_consumer_writes_between_batches(connection, store, database_url):
    """A consumer that always has messages writes what is due as well."""
    component = Component("other", id="order_id")
    over = threading.Event()

    @component.handle(Pay)
    def pay(command, entity, context):
        if not over.is_set():
            context.write(Pay("1"), "other:command-1")

    with running(component, database_url):
        store.write(Pay("1"), "other:command-1")
        store.schedule(Place("1"), ORDER, after="50ms")
        until(lambda: list(store.read_stream(ORDER)))
        over.set()


def test_a_message_that_the_log_refuses_is_logged_and_ends_nothing(store, connection, database_url):
    """A consumer goes on beside a message that cannot be written, which the log names."""
    store.schedule(Place("1"), ORDER, at=PAST)
    with (
        refusing(connection, "NEW.type = 'Place'"),
        Started(database_url, app="tests.unpaid:order", cwd=ROOT) as started,
    ):
        logged = started.wait_for("scheduled_refused", messages=1)
        assert logged["level"] == "warning"
        store.schedule(Pay("1"), ORDER, at=PAST)
        started.wait_for("scheduled_written", messages=1)
        assert started.stop() == 0


def test_a_process_leaves_a_schedule_alone_that_it_cannot_write(
    connection, database_url, store, monkeypatch
):
    """Where somebody has locked what is due, the next attempts come later and later."""
    store.schedule(Place("1"), ORDER, at=PAST)
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    schedule = Schedule(Log("order", SENT), Telemetry())
    schedule.next_in(-1)
    pauses = []
    with connection.transaction(), connect(database_url, autocommit=True) as own:
        connection.execute("SELECT reservation.lock_categories(ARRAY['order:command-1'])")
        for _ in range(7):
            assert schedule.is_due
            assert not schedule.write(own)
            assert not schedule.is_due
            pauses.append(round(schedule.limit(60), 3))
            now[0] += pauses[-1]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert schedule.write(connection)
    assert not schedule.is_due


def all_expired(store, count):
    """Return whether so many orders have expired, and nothing is left to do."""
    return sum(m.type == "Expired" for m in store.read_category("order")) == count


def kill_at_random(store, connection, database_url, seed, count, kills):
    """Place orders, and kill the only process that writes what they schedule, again and again."""
    chance = random.Random(seed)
    started, number = None, 0
    try:
        for n in range(count):
            store.write(Place(str(n)), f"{SENT}-{n}")
            store.schedule(Expire(f"x{n}"), f"{SENT}-x{n}", after=f"{chance.randrange(3000)}ms")
        deadline = time.monotonic() + 400
        while not all_expired(store, 2 * count):
            assert time.monotonic() < deadline
            started = Started(database_url, app="tests.unpaid:order", cwd=ROOT)
            with started:
                started.wait_for("consumer_started")
                if number < kills:
                    time.sleep(chance.random())  # the moment of the death is what is random
                    number += 1
                    started.stop_group(9)
                else:
                    until(lambda: all_expired(store, 2 * count))
    finally:
        if started is not None and started.process.poll() is None:
            started.stop_group(9)
    sent = [m for m in store.read_category(SENT) if m.type == "Expire"]
    assert len(sent) == len({message.id for message in sent}) == 2 * count
    assert len({message.stream_name for message in sent}) == 2 * count
    assert rows(connection) == []


@pytest.mark.faults
@pytest.mark.parametrize("seed", seeds(1, exhaustive=10))
def test_what_is_scheduled_is_written_once_although_its_process_is_killed(
    store, connection, database_url, seed
):
    """A process that is killed while it schedules and writes leaves nothing out or doubled."""
    kill_at_random(store, connection, database_url, seed, 20, 3)


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", seeds(1))
def test_what_is_scheduled_is_written_once_although_its_process_is_killed_often(
    store, connection, database_url, seed
):
    """The same with more messages and more deaths."""
    kill_at_random(store, connection, database_url, seed, 300, 20)
