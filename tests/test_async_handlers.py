"""Async handlers: several calls at a time, and in the log what one at a time would have left."""

import asyncio
import contextlib
import functools
import gc
import json
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass

import pytest

import consumers
from consumers.dead_letters import administration
from consumers.dead_letters.stored_letters import Selection
from consumers.loop.consumer import Consumer
from consumers.runtime.backoff import Backoff
from consumers.runtime.event_loop import CallsCancelledError, EventLoop
from consumers.runtime.stopping import Stop
from reservation import (
    Component,
    MessageIdInEvents,
    PositionInEvents,
    Processed,
    Retry,
    RetryLater,
    StateBased,
    follow,
)
from reservation.errors import DeclarationError, HandlerError
from reservation.testing import check_deterministic
from tests import consuming
from tests.bank import session
from tests.consuming import until
from tests.processes import PATIENCE

CATEGORY = "notice:command"


@dataclass(frozen=True)
class Notify:
    customer_id: str
    notice_id: str
    revision: int = 0


@dataclass(frozen=True)
class Block:
    customer_id: str
    notice_id: str


@dataclass(frozen=True)
class Notified:
    customer_id: str
    notice_id: str
    number: int = 0


@dataclass
class Customer:
    notices: int = 0


class Notices:
    """A component whose handler waits for an outside system, and notes what runs at a time."""

    def __init__(
        self, connection, *, concurrency=50, retry=None, once=None, pause=0.002, entity=True
    ):
        self.connection = connection
        self.pause = pause
        self.failing = {}
        self.calls = []
        self.running = Counter()
        self.most = 0
        self.within = set()
        self.overlapping = False
        self.component = Component("notice", entity=Customer, id="customer_id")
        self.component.project(Notified)(self.apply)
        self.component.handle(Notify, concurrency=concurrency, retry=retry, once=once)(self.handle)

    def apply(self, customer, event):
        customer.notices += 1

    async def handle(self, command, customer, context):
        self.calls.append(command.notice_id)
        self.running[command.customer_id] += 1
        self.most = max(self.most, self.running.total())
        self.overlapping |= self.running[command.customer_id] > 1
        try:
            await asyncio.sleep(self.pause)
            failing = self.failing.get(command.notice_id)
            if failing is not None:
                raise failing
        finally:
            self.running[command.customer_id] -= 1
        return context.follow(command, Notified, number=customer.notices + 1)

    def send(self, store, *names, type_=Notify):
        """Write commands, each named by its customer's number and a letter, as in 1a."""
        for name in names:
            number = name.rstrip("abcdefghijklmnopqrstuvwxyz")
            store.write(type_(number, name), f"{CATEGORY}-{number}")

    def drain(self, database_url, **options):
        return consumers.drain(self.component, database_url, **options).counts

    def notified(self, store):
        """Return the events of the log, each as the notice and its number."""
        found = [json.loads(event.data) for event in store.read_category("notice")]
        return [(event["noticeId"], event["number"]) for event in found]

    def letters(self):
        return administration.find(self.connection, Selection(), states=None)


def running(component, database_url, stop=None, **options):
    """Run the consumer of the commands in a thread, while the block lasts."""
    return consuming.running(component, database_url, CATEGORY, stop, **options)


# Declaring


async def asynchronous(command, entity, context): ...


class Calling:
    async def __call__(self, command, entity, context): ...


@pytest.mark.parametrize(
    "handler", [asynchronous, functools.partial(asynchronous), Calling()], ids=["f", "partial", "c"]
)
def test_whatever_is_declared_async_is_awaited(handler):
    """Functions, partial ones and callable objects may be async, ten calls at a time by default."""
    component = Component("notice", id="customer_id")
    component.handle(Notify)(handler)
    assert component.concurrency == {"Notify": 10}


@pytest.mark.parametrize(
    ("options", "handler", "problem"),
    [
        (
            {"concurrency": 5},
            lambda command, entity, context: None,
            "concurrency=5 of Notify is for handlers with async def",
        ),
        ({"concurrency": 0}, asynchronous, "concurrency=0 of Notify is not from 1 to 10000"),
        ({"concurrency": 2.5}, asynchronous, "concurrency=2.5 of Notify is not a whole number"),
        ({"concurrency": True}, asynchronous, "concurrency=True of Notify is not a whole number"),
        (
            {"transaction": "message"},
            asynchronous,
            'handler of Notify is async, and transaction="message" handles one message at a time',
        ),
        (
            {"once": StateBased()},
            asynchronous,
            "the handler of Notify is async, and once=StateBased handles one message at a time",
        ),
    ],
)
def test_what_cannot_be_async_is_refused_where_it_is_declared(options, handler, problem):
    """A handler that cannot run as it is declared is refused in one line."""
    component = Component("notice", entity=Customer, id="customer_id")
    with pytest.raises(DeclarationError, match=problem) as caught:
        component.handle(Notify, **options)(handler)
    assert "\n" not in str(caught.value)


def test_a_projector_cannot_be_async():
    """Only handlers are awaited."""

    async def apply(customer, event): ...

    component = Component("notice", entity=Customer, id="customer_id")
    with pytest.raises(DeclarationError, match="is async; declare it with def"):
        component.project(Notified)(apply)


# At a time


def test_as_many_run_at_a_time_as_declared_and_each_entity_in_order(
    connection, store, database_url
):
    """Entities go side by side up to the limit; the messages of one never do."""
    notices = Notices(connection, concurrency=5)
    names = [f"{n}{letter}" for letter in "abc" for n in range(20)]
    notices.send(store, *names)
    assert notices.drain(database_url) == {"handled": 60}
    assert notices.most == 5
    assert not notices.overlapping
    assert notices.notified(store) == [(name, "abc".index(name[-1]) + 1) for name in names]


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_the_log_equals_that_of_one_message_at_a_time(connection, store, database_url, batch_size):
    """Whatever ends first: effects are in the order of the messages, and built on each other."""
    notices = Notices(connection)

    async def handle(command, customer, context):
        await asyncio.sleep(context.random.random() / 200)
        context.write(Block(command.customer_id, command.notice_id), f"audit-{command.customer_id}")
        return [context.follow(command, Notified, number=customer.notices + n) for n in (1, 2)]

    notices.component.handlers["Notify"] = handle
    names = [f"{n % 7}{letter}" for letter in "abcdef" for n in range(7)]
    notices.send(store, *names)
    notices.drain(database_url, batch_size=batch_size)
    expected = [(name, 2 * "abcdef".index(name[-1]) + n) for name in names for n in (1, 2)]
    assert notices.notified(store) == expected
    audit = [json.loads(one.data)["noticeId"] for one in store.read_category("audit")]
    assert audit == names


def test_handlers_of_both_kinds_share_a_batch(connection, store, database_url):
    """Those that are not async are called in their order, and can use the connection."""
    connection.execute("CREATE TABLE blocks (number serial, notice text)")
    notices = Notices(connection)

    def block(command, customer, context):
        context.connection.execute("INSERT INTO blocks (notice) VALUES (%s)", [command.notice_id])
        return follow(command, Notified, number=customer.notices + 1)

    notices.component.handle(Block)(block)
    for n in range(12):
        notices.send(store, f"{n}a")
        notices.send(store, f"{n % 5}b", type_=Block)
        notices.send(store, f"{n}c")
    counts = notices.drain(database_url)
    assert counts == {"handled": 36}
    rows = connection.execute("SELECT notice FROM blocks ORDER BY number").fetchall()
    assert rows == [(f"{n % 5}b",) for n in range(12)]
    numbers = {}
    for name, number in notices.notified(store):
        numbers.setdefault(name[:-1], []).append(number)
    assert all(each == list(range(1, len(each) + 1)) for each in numbers.values())
    assert notices.most > 5


def test_initiators_may_be_async(connection, store, database_url):
    """A command that starts a stream is awaited too, and its reissue is discarded."""
    component = Component("notice", id="customer_id")

    @component.initiate(Notify, concurrency=3)
    async def start(command, context):
        await asyncio.sleep(0.001)
        return follow(command, Notified)

    notices = Notices(connection)
    notices.component = component
    notices.send(store, "1a", "2a", "1a", "3a", "2a")
    assert notices.drain(database_url) == {"handled": 3, "duplicate": 2}
    assert [name for name, _ in notices.notified(store)] == ["1a", "2a", "3a"]


def test_there_is_no_connection_in_an_async_handler(connection, store, database_url, monkeypatch):
    """The use of the connection is refused, and the error says so."""
    monkeypatch.setattr(Backoff, "next", lambda self: 0.0)
    notices = Notices(connection)

    async def handle(command, customer, context):
        context.connection.execute("SELECT 1")

    notices.component.handlers["Notify"] = handle
    notices.send(store, "1a")
    notices.drain(database_url)
    (letter,) = notices.letters()
    assert (letter.state, letter.reason) == ("dead", "handler")
    assert "a handler with StateBased or async def has none" in letter.error


# Messages of other entities


def test_what_a_handler_writes_to_another_entity_is_seen_by_its_later_messages(
    connection, store, database_url
):
    """A batch in which one entity's message changes another is handled one at a time."""
    notices = Notices(connection)

    async def handle(command, customer, context):
        notices.calls.append(command.notice_id)
        await asyncio.sleep(0.02 if command.customer_id == "1" else 0)
        if command.customer_id == "1":
            context.write(Notified("2", command.notice_id), "notice-2")
        return context.follow(command, Notified, number=customer.notices + 1)

    notices.component.handlers["Notify"] = handle
    notices.send(store, "1a", "2a", "1b", "2b")
    assert notices.drain(database_url) == {"handled": 4}
    found = {name: number for name, number in notices.notified(store) if number}
    assert found == {"1a": 1, "2a": 2, "1b": 2, "2b": 4}
    notices.calls.clear()
    notices.send(store, "1c", "2c", "2d")
    notices.drain(database_url)
    assert notices.notified(store)[-1] == ("2d", 7)


@pytest.mark.parametrize(
    "once",
    [Processed(), Processed(key="notice_id"), MessageIdInEvents(), PositionInEvents()],
    ids=["processed", "key", "ids", "position"],
)
def test_each_strategy_recognizes_repeated_messages(connection, store, database_url, once):
    """A strategy finds in a concurrent batch what it finds in one message at a time."""
    notices = Notices(connection, once=once)
    for _ in range(2):
        notices.send(store, "1a", "2a", "1b")
        store.write(Notify("3", "1a"), f"{CATEGORY}-3")  # the key of another entity's
    by_key = isinstance(once, Processed) and once.key is not None
    counts = notices.drain(database_url)
    assert counts == ({"handled": 3, "duplicate": 5} if by_key else {"handled": 8})
    assert [name for name, _ in notices.notified(store)] == (
        ["1a", "2a", "1b"] if by_key else ["1a", "2a", "1b", "1a"] * 2
    )
    (read,) = [
        row[0]
        for row in connection.execute(
            "UPDATE reservation.positions SET position = 0, message_id = NULL RETURNING 1"
        )
    ]
    again = notices.drain(database_url)
    assert again.get("handled", 0) == 0
    assert read


# Failures


def test_one_that_fails_neither_cancels_nor_repeats_the_others(
    connection, store, database_url, monkeypatch
):
    """Others of the batch are called once; what fails is tried again by itself, then dead."""
    monkeypatch.setattr(Backoff, "next", lambda self: 0.001)
    notices = Notices(connection)
    notices.failing = {"2a": ValueError("secret"), "4a": asyncio.CancelledError("secret")}
    notices.failing["5a"] = SystemExit(3)
    notices.send(store, "1a", "2a", "3a", "2b", "4a", "1b", "5a")
    assert notices.drain(database_url) == {"handled": 3, "dead": 3, "parked": 1}
    assert Counter(notices.calls) == {"1a": 1, "2a": 3, "3a": 1, "4a": 3, "1b": 1, "5a": 3}
    assert [name for name, _ in notices.notified(store)] == ["1a", "3a", "1b"]
    states = [(one.state, one.reason, one.attempts) for one in notices.letters()]
    assert sorted(states) == [("dead", "handler", 3)] * 3 + [("parked", "parked", 0)]
    assert "secret" not in str(notices.letters())
    notices.failing = {}
    administration.retry(connection, Selection(), [])
    notices.drain(database_url)
    assert {one.state for one in notices.letters()} == {"handled"}
    assert [one for one in notices.notified(store) if one[0][0] == "2"] == [("2a", 1), ("2b", 2)]


def test_each_attempt_gets_the_command_as_it_is_stored(
    connection, store, database_url, monkeypatch
):
    """What a handler changed in its command before it failed is not there the next time."""
    monkeypatch.setattr(Backoff, "next", lambda self: 0.0)
    notices, seen = Notices(connection), []

    async def handle(command, customer, context):
        seen.append(command.revision)
        object.__setattr__(command, "revision", 7)
        if len(seen) < 3:
            raise ValueError
        return context.follow(command, Notified)

    notices.component.handlers["Notify"] = handle
    notices.send(store, "1a")
    assert notices.drain(database_url) == {"handled": 1}
    assert seen == [0, 0, 0]


def test_a_policy_and_retry_later_make_async_messages_wait(connection, store, database_url):
    """A message of an async handler waits like any other, and others go on."""
    retry = Retry(attempts=1000, first="10ms", most="20ms", on=OSError)
    notices = Notices(connection, retry=retry)
    notices.failing = {"1a": OSError(), "3a": RetryLater("10ms")}
    notices.send(store, "1a", "2a", "1b", "3a", "3b")
    with running(notices.component, database_url) as (thread, _):
        until(lambda: notices.calls.count("1a") > 2 and notices.calls.count("3a") > 2, thread)
        assert notices.notified(store) == [("2a", 1)]
        notices.failing = {}
        until(lambda: len(notices.notified(store)) == 5, thread)
        until(lambda: {one.state for one in notices.letters()} == {"handled"}, thread)
    found = notices.notified(store)
    assert [one for one in found if one[0][0] == "1"] == [("1a", 1), ("1b", 2)]
    assert [one for one in found if one[0][0] == "3"] == [("3a", 1), ("3b", 2)]


def test_a_consumer_that_stops_on_errors_stops_at_the_first_in_the_log(
    connection, store, database_url
):
    """With `stop_on_error` the error of the first message in the order of the log is raised."""
    notices = Notices(connection)
    notices.failing = {"2a": ValueError(), "4a": ValueError()}
    notices.send(store, "1a", "2a", "3a", "4a")
    stop = Stop(takes_signals=False)
    with session(database_url) as opened:
        consumer = Consumer(opened, notices.component, CATEGORY, stop_on_error=True)
        with pytest.raises(HandlerError, match=r"notice:command-2, global position 2 "):
            consumer.run(stop)
    assert notices.notified(store) == [("1a", 1)]


def test_drain_says_how_to_call_it_where_an_event_loop_runs(connection, store, database_url):
    """In a thread that runs an event loop, the error names the way out."""
    notices = Notices(connection)
    notices.send(store, "1a")

    async def within():
        notices.drain(database_url)

    with pytest.raises(DeclarationError, match=r"await asyncio.to_thread\(drain"):
        asyncio.run(within())

    async def beside():
        return await asyncio.to_thread(notices.drain, database_url)

    assert asyncio.run(beside()) == {"handled": 1}


# Stopping, and signs of life


def test_calls_are_cancelled_near_the_end_of_the_grace_and_the_batch_is_rolled_back(
    connection, store, database_url
):
    """A coroutine that does not end is cancelled; nothing of its batch is written or counted."""
    notices = Notices(connection, pause=0)
    cancelled, waiting = [], threading.Event()

    async def handle(command, customer, context):
        if command.customer_id == "2":
            waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(command.notice_id)
                raise ValueError from None
        return context.follow(command, Notified, number=customer.notices + 1)

    notices.component.handlers["Notify"] = handle
    notices.send(store, "1a", "2a", "3a")
    with running(notices.component, database_url, grace=1.0) as (thread, stop):
        assert waiting.wait(PATIENCE)
        stop.request()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert cancelled == ["2a"]
    assert notices.notified(store) == []
    assert notices.letters() == []
    notices.component.handlers["Notify"] = notices.handle
    assert notices.drain(database_url) == {"handled": 3}


def test_a_batch_that_ends_within_the_grace_is_committed(connection, store, database_url):
    """A stop lets the calls end, as long as there is time."""
    notices = Notices(connection, pause=0.4)
    notices.send(store, "1a", "2a")
    with running(notices.component, database_url, grace=30.0) as (thread, stop):
        until(lambda: notices.most == 2, thread)
        stop.request()
        thread.join(PATIENCE)
    assert [name for name, _ in notices.notified(store)] == ["1a", "2a"]


def test_a_call_that_ignores_its_cancellation_is_cancelled_again():
    """Cancelling goes on until every call has ended."""
    loop, times = EventLoop(grace=0.2), []
    loop.stop = Stop(takes_signals=False)
    loop.stop.request()

    async def stubborn():
        while len(times) < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                times.append(time.monotonic())

    with loop.stop, pytest.raises(CallsCancelledError):
        loop.run(lambda: [stubborn()])
    assert len(times) == 3
    loop.close()


def test_of_calls_that_fail_together_the_first_is_raised_and_none_is_logged_as_forgotten(caplog):
    """asyncio logs the exception of a task that nobody asks for, once the task is collected."""
    loop = EventLoop()

    async def fail(name):
        raise KeyError(name)

    with pytest.raises(KeyError, match="first"):
        loop.run(lambda: [fail("first"), fail("second")])
    gc.collect()
    assert caplog.records == []
    loop.close()


def test_a_blocked_loop_gives_no_sign_of_life(monkeypatch):
    """While a coroutine blocks the loop there are no beats, and it does not count as alive."""
    monkeypatch.setattr("consumers.runtime.event_loop.TICK", 0.02)
    monkeypatch.setattr("consumers.runtime.event_loop.BLOCKED_AFTER", 0.2)
    beats, seen = [], []
    loop = EventLoop(lambda: beats.append(time.monotonic()))
    blocked, looked = threading.Event(), threading.Event()

    async def waits():
        await asyncio.sleep(0.3)
        assert loop.is_alive
        beats.clear()
        blocked.set()
        looked.wait(PATIENCE)

    def look():
        blocked.wait(PATIENCE)
        until(lambda: not loop.is_alive)
        seen.extend(beats)
        looked.set()

    looking = threading.Thread(target=look)
    looking.start()
    assert loop.is_alive
    loop.run(lambda: [waits()])
    looking.join()
    assert seen == []
    assert loop.is_alive

    def slow():
        with loop.blocking():
            time.sleep(0.3)
            assert loop.is_alive

    async def mixed():
        slow()

    loop.run(lambda: [mixed()])
    loop.close()


def test_a_member_with_a_blocked_loop_loses_its_lease(connection, store, database_url, monkeypatch):
    """The lease of a consumer whose loop is blocked is not renewed; one that awaits keeps it."""
    monkeypatch.setattr("consumers.runtime.event_loop.BLOCKED_AFTER", 0.5)
    notices = Notices(connection)
    go_on = threading.Event()

    async def handle(command, customer, context):
        if command.notice_id == "1a":
            while not go_on.is_set():
                await asyncio.sleep(0.01)
        else:
            while not go_on.is_set():
                time.sleep(0.01)

    def lease():
        return connection.execute(
            "SELECT coalesce(max(expires_at), to_timestamp(0)) FROM reservation.leases"
        ).fetchone()[0]

    def expired():
        ((gone,),) = connection.execute(
            "SELECT bool_and(expires_at < clock_timestamp()) FROM reservation.leases"
        ).fetchall()
        return gone

    notices.component.handlers["Notify"] = handle
    notices.send(store, "1a")
    with running(notices.component, database_url) as (thread, _):
        for _ in range(2):  # while the call waits
            before = lease()
            until(lambda before=before: lease() > before, thread)
        assert expired() is False
        go_on.set()
        until(lambda: store.stream_version(CATEGORY) is not None, thread)
        until(
            lambda: (
                connection.execute("SELECT position FROM reservation.positions").fetchone()[0] > 0
            ),
            thread,
        )
        go_on.clear()
        notices.send(store, "2b")
        until(expired, thread)
        go_on.set()


def test_a_handlers_process_that_forks_ends_the_copy(connection, store, database_url):
    """A fork that comes back from an async handler ends, and the consumer goes on."""
    notices = Notices(connection)
    children = []

    async def handle(command, customer, context):
        child = os.fork()
        if child:
            children.append(child)
        return context.follow(command, Notified, number=1)

    notices.component.handlers["Notify"] = handle
    notices.send(store, "1a")
    with contextlib.suppress(DeprecationWarning):
        assert notices.drain(database_url) == {"handled": 1}
    (child,) = children
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert notices.notified(store) == [("1a", 1)]


def test_async_handlers_are_tested_like_others():
    """`check_deterministic` awaits a handler, also within an event loop."""
    notices = Notices(None)
    handled = check_deterministic(notices.component, Notify("1", "1a"), Customer(4))
    assert handled.events == [Notified("1", "1a", 5)]

    async def within():
        return check_deterministic(notices.component, Notify("1", "1a"), Customer(4))

    assert asyncio.run(within()).events == handled.events
