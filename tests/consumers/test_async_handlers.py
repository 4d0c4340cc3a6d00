"""Async handlers: several calls at a time, and in the log what one at a time would have left."""

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass

import pytest

import consumers
from reservation import Component, Retry, RetryLater
from reservation.errors import DeclarationError
from reservation.strategies import MessageIdInEvents, PositionInEvents, Processed
from reservation.testing import check_deterministic
from tests.consumers.builders import Till, decide, letters, number, read_again, reasons
from tests.support.awaiting import impatient
from tests.support.consuming import hosted, until

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

    def __init__(self, store=None, database_url="", *, handler=None, attempts=1, **options):
        self.store = store
        self.database_url = database_url
        self.failing = {}
        self.calls = []
        self.running = Counter()
        self.most = 0
        self.overlapping = False
        self.pause = 0.002
        self.component = Component("notice", entity=Customer, id="customer_id", attempts=attempts)
        self.component.project(Notified)(self.apply)
        options = {"concurrency": 50, "once": None} | options
        self.component.handle(Notify, **options)(handler or self.handle)

    def apply(self, customer, event):
        customer.notices += 1

    async def handle(self, command, customer, context):
        self.calls.append(command.notice_id)
        self.running[command.customer_id] += 1
        self.most = max(self.most, self.running.total())
        self.overlapping |= self.running[command.customer_id] > 1
        try:
            await asyncio.sleep(self.pause)
            if command.notice_id in self.failing:
                raise self.failing[command.notice_id]
        finally:
            self.running[command.customer_id] -= 1
        return context.follow(command, Notified, number=customer.notices + 1)

    def send(self, *names, type_=Notify):
        """Write commands, each named by its customer's number and a letter, as in 1a."""
        for name in names:
            self.store.write(type_(number(name), name), f"{CATEGORY}-{number(name)}")

    def drain(self, **options):
        return consumers.drain(self.component, self.database_url, **options).counts

    def notified(self):
        """Return the events of the log, each as the notice and its number."""
        found = [event.decode(Notified) for event in self.store.read_category("notice")]
        return [(event.notice_id, event.number) for event in found]


@pytest.fixture(params=["patient", "impatient"])
def patience(request, monkeypatch):
    """Let batches wait for their calls, or for none."""
    if request.param == "impatient":
        impatient(monkeypatch)
    return request.param


def by_entity(notified):
    """Return notices in their order, entity by entity."""
    return sorted(notified, key=lambda one: number(one[0]))


@pytest.fixture
def make(store, database_url):
    """Give a function that makes notices in the test's store."""
    return lambda **options: Notices(store, database_url, **options)


# At a time


def test_as_many_run_at_a_time_as_declared_and_each_entity_in_order(make, patience):
    """Entities go side by side up to the limit; the messages of one never do."""
    notices = make(concurrency=5)
    names = [f"{n}{letter}" for letter in "abc" for n in range(20)]
    notices.send(*names)
    assert notices.drain() == {"handled": 60}
    assert notices.most == 5
    assert not notices.overlapping
    expected = [(name, "abc".index(name[-1]) + 1) for name in names]
    assert by_entity(notices.notified()) == by_entity(expected)
    if patience == "patient":
        assert notices.notified() == expected


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_the_log_equals_that_of_one_message_at_a_time(make, batch_size):
    """Whatever ends first: effects are in the order of the messages, and built on each other."""

    async def handle(command, customer, context):
        await asyncio.sleep(random.random() / 200)
        context.write(Block(command.customer_id, command.notice_id), f"audit-{command.customer_id}")
        return [context.follow(command, Notified, number=customer.notices + n) for n in (1, 2)]

    notices = make(handler=handle)
    names = [f"{n % 7}{letter}" for letter in "abcdef" for n in range(7)]
    notices.send(*names)
    notices.drain(batch_size=batch_size)
    expected = [(name, 2 * "abcdef".index(name[-1]) + n) for name in names for n in (1, 2)]
    assert notices.notified() == expected
    audit = [message.decode(Block).notice_id for message in notices.store.read_category("audit")]
    assert audit == names


def test_handlers_of_both_kinds_share_a_batch(connection, make, patience):
    """Those that are not async are called in their order, and can use the connection."""
    connection.execute("CREATE TABLE blocks (number serial, notice text)")
    notices = make()

    def block(command, customer, context):
        context.connection.execute("INSERT INTO blocks (notice) VALUES (%s)", [command.notice_id])
        return context.follow(command, Notified, number=customer.notices + 1)

    notices.component.handle(Block, once=None)(block)
    for n in range(12):
        notices.send(f"{n}a")
        notices.send(f"{n % 5}b", type_=Block)
        notices.send(f"{n}c")
    assert notices.drain() == {"handled": 36}
    rows = connection.execute("SELECT notice FROM blocks ORDER BY number").fetchall()
    assert rows == [(f"{n % 5}b",) for n in range(12)]
    numbers = {}
    for name, count in notices.notified():
        numbers.setdefault(name[:-1], []).append(count)
    assert all(each == list(range(1, len(each) + 1)) for each in numbers.values())
    assert notices.most > 5


def test_initiators_may_be_async(make, patience):
    """A command that starts a stream is awaited too, and its reissue is discarded."""
    notices = make()
    notices.component = Component("notice", id="customer_id")

    @notices.component.initiate(Notify, concurrency=3)
    async def start(command, context):
        await asyncio.sleep(0.001)
        return context.follow(command, Notified)

    notices.send("1a", "2a", "1a", "3a", "2a")
    assert notices.drain() == {"handled": 3, "duplicate": 2}
    assert sorted(name for name, _ in notices.notified()) == ["1a", "2a", "3a"]


def test_there_is_no_connection_in_an_async_handler(connection, make):
    """The use of the connection is refused, and the error says so."""

    async def handle(command, customer, context):
        context.connection.execute("SELECT 1")

    notices = make(handler=handle)
    notices.send("1a")
    notices.drain()
    (letter,) = letters(connection)
    assert (letter["state"], letter["reason"]) == ("dead", "handler")
    assert "a handler with StateBased or async def has none" in letter["error"]


def test_what_a_handler_writes_to_another_entity_is_seen_by_its_later_messages(make):
    """A batch in which one entity's message changes another is handled one at a time."""

    async def handle(command, customer, context):
        await asyncio.sleep(0.02 if command.customer_id == "1" else 0)
        if command.customer_id == "1":
            context.write(Notified("2", command.notice_id), "notice-2")
        return context.follow(command, Notified, number=customer.notices + 1)

    notices = make(handler=handle)
    notices.send("1a", "2a", "1b", "2b")
    assert notices.drain() == {"handled": 4}
    found = {name: count for name, count in notices.notified() if count}
    assert found == {"1a": 1, "2a": 2, "1b": 2, "2b": 4}
    notices.send("1c", "2c", "2d")
    notices.drain()
    assert notices.notified()[-1] == ("2d", 7)


@pytest.mark.parametrize(
    "once",
    [Processed(), Processed(key="notice_id"), MessageIdInEvents(), PositionInEvents()],
    ids=["processed", "key", "ids", "position"],
)
def test_each_strategy_recognizes_repeated_messages(connection, make, once, patience):
    """A strategy finds in a concurrent batch what it finds in one message at a time."""
    notices = make(once=once)
    for _ in range(2):
        notices.send("1a", "2a", "1b")
        notices.store.write(Notify("3", "1a"), f"{CATEGORY}-3")  # the key of another entity's
    by_key = isinstance(once, Processed) and once.key is not None
    assert notices.drain() == ({"handled": 3, "duplicate": 5} if by_key else {"handled": 8})
    found = [name for name, _ in notices.notified()]
    expected = ["1a", "2a", "1b"] if by_key else ["1a", "2a", "1b", "1a"] * 2
    assert sorted(found) == sorted(expected)
    if patience == "patient":
        assert found == expected
    read_again(connection)
    assert "handled" not in notices.drain()


# Failures


def test_one_that_fails_neither_cancels_nor_repeats_the_others(connection, make):
    """Others of the batch are called once; what fails is tried again by itself, then dead."""
    notices = make(attempts=2)
    notices.failing = {"2a": ValueError("secret"), "4a": asyncio.CancelledError("secret")}
    notices.failing["5a"] = SystemExit(3)
    notices.send("1a", "2a", "3a", "2b", "4a", "1b", "5a")
    assert notices.drain() == {"handled": 3, "dead": 3, "parked": 1}
    assert Counter(notices.calls) == {"1a": 1, "2a": 2, "3a": 1, "4a": 2, "1b": 1, "5a": 2}
    assert [name for name, _ in notices.notified()] == ["1a", "3a", "1b"]
    assert sorted(reasons(connection)) == [("dead", "handler", 2)] * 3 + [("parked", "parked", 0)]
    assert "secret" not in str(letters(connection))
    notices.failing = {}
    decide(connection, "retry", "--all")
    notices.drain()
    assert {one["state"] for one in letters(connection)} == {"handled"}
    assert [one for one in notices.notified() if one[0][0] == "2"] == [("2a", 1), ("2b", 2)]


def test_each_attempt_gets_the_command_as_it_is_stored(make, patience):
    """What a handler changed in its command before it failed is not there the next time."""
    seen = []

    async def handle(command, customer, context):
        seen.append(command.revision)
        object.__setattr__(command, "revision", 7)
        if len(seen) < 3:
            raise ValueError
        return context.follow(command, Notified)

    notices = make(handler=handle, attempts=3)
    notices.send("1a")
    assert notices.drain() == {"handled": 1}
    assert seen == [0, 0, 0]


def test_a_policy_and_retry_later_make_async_messages_wait(connection, make, patience):
    """A message of an async handler waits like any other, and others go on."""
    notices = make(retry=Retry(attempts=1000, first="1h", on=OSError))
    notices.failing = {"1a": OSError(), "3a": RetryLater("1h")}
    notices.send("1a", "2a", "1b", "3a", "3b")
    assert notices.drain() == {"handled": 1, "waiting": 2, "parked": 2}
    notices.failing = {}
    Till(connection).let_next_attempts_be_due()
    notices.drain()
    assert {one["state"] for one in letters(connection)} == {"handled"}
    found = notices.notified()
    assert [one for one in found if one[0][0] == "1"] == [("1a", 1), ("1b", 2)]
    assert [one for one in found if one[0][0] == "3"] == [("3a", 1), ("3b", 2)]


# Around them


def test_drain_says_how_to_call_it_where_an_event_loop_runs(make):
    """In a thread that runs an event loop, the error names the way out."""
    notices = make()
    notices.send("1a")

    async def within():
        notices.drain()

    with pytest.raises(DeclarationError, match=r"await asyncio.to_thread\(drain"):
        asyncio.run(within())

    async def beside():
        return await asyncio.to_thread(notices.drain)

    assert asyncio.run(beside()) == {"handled": 1}


def test_a_batch_in_hand_is_committed_at_a_stop(make, database_url):
    """A stop lets the calls end."""
    notices = make()
    notices.pause = 0.3
    notices.send("1a", "2a")
    with hosted(notices.component, database_url) as thread:
        until(lambda: notices.most == 2, thread)
    assert [name for name, _ in notices.notified()] == ["1a", "2a"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_copy_of_the_process_that_leaves_a_handler_ends(make):
    """The consumer goes on."""
    children = []

    async def handle(command, customer, context):
        if child := os.fork():
            children.append(child)
        return context.follow(command, Notified, number=1)

    notices = make(handler=handle)
    notices.send("1a")
    assert notices.drain() == {"handled": 1}
    (child,) = children
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert notices.notified() == [("1a", 1)]


def test_async_handlers_are_tested_like_others():
    """`check_deterministic` awaits a handler, also within an event loop."""
    component = Notices().component
    handled = check_deterministic(component, Notify("1", "1a"), Customer(4))
    assert handled.events == [Notified("1", "1a", 5)]

    async def within():
        return check_deterministic(component, Notify("1", "1a"), Customer(4))

    assert asyncio.run(within()).events == handled.events
