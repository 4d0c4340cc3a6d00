"""Pauses: what a person stops waits, in every process, and is handled when it is resumed."""

import asyncio

import psycopg
import pytest

import consumers
from bank import account
from consumers.group import membership  # noqa: TID251  so that only a notice can wake it up
from tests.apps import occupancy
from tests.apps.bank import READS, RESERVED, address, event_types
from tests.apps.nightly import SENT, hotels
from tests.apps.occupancy import book, nights, one_by_one
from tests.consumers.builders import TILLS, Till, letters, reasons
from tests.consumers.test_async_handlers import Notices
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, logged, logging, until
from tests.support.controls import COMMANDS, deposit, open_

POSITION = "SELECT max(position) FROM reservation.positions WHERE category = %s"


def pause(connection, *arguments, reason="provider migration"):
    """Pause something."""
    command(connection, "pause", *arguments, "--reason", reason)


def resume(connection, *arguments):
    """Resume it."""
    command(connection, "resume", *arguments)


def command(connection, *arguments):
    env = {"RESERVATION_DATABASE_URL": address(connection)}
    done = invoke_cli(*arguments, env=env)
    assert done.returncode == 0, done.stderr


def position(connection, category):
    return connection.execute(POSITION, [category]).fetchone()[0]


@pytest.fixture
def till(connection):
    """Give a till that was run once, so that the store knows it."""
    till = Till(connection, attempts=3)
    till.drain()
    return till


# What waits, and goes on


def test_a_component_that_is_paused_reads_nothing(connection, till):
    """Its messages are as they were, and are handled in their order once it is resumed."""
    till.send("1a")
    till.drain()
    pause(connection, "till")
    before = position(connection, TILLS)
    till.send("1b", "2a", "1c")
    assert till.drain() == {}
    assert (till.calls, position(connection, TILLS)) == (["1a"], before)
    assert letters(connection) == []
    resume(connection, "till")
    assert till.drain() == {"handled": 3}
    assert till.paid() == ["1a", "1b", "2a", "1c"]


@pytest.mark.parametrize("paused", READS)
def test_a_category_is_paused_by_itself(connection, store, paused):
    """Commands are still reserved while their copies wait, and copies handled while they do."""
    consumers.drain(account, address(connection))
    store.write([open_(), deposit("d1")], COMMANDS)
    copy_waits = paused == RESERVED
    pause(connection, "account", "--category", paused)
    counts = consumers.drain(account, address(connection)).counts
    assert counts == ({"handled": 1, "reserved": 1} if copy_waits else {})
    resume(connection, "account", "--category", paused)
    consumers.drain(account, address(connection))
    assert event_types(store) == ["Opened", "Deposited"]


def test_letters_of_a_paused_consumer_wait(connection, till):
    """A retry that is due is made after the pause, with the attempts that are left."""
    till.failing = {"1a"}
    till.send("1a", "1b")
    till.drain()
    tried = len(till.calls)
    ((state, reason, attempts), parked) = reasons(connection)
    assert (state, reason) == ("waiting", "handler")
    pause(connection, "till")
    till.failing = set()
    till.let_next_attempts_be_due()
    assert till.drain() == {}
    assert len(till.calls) == tried
    assert reasons(connection) == [(state, reason, attempts), parked]
    resume(connection, "till")
    till.drain()
    assert till.paid() == ["1a", "1b"]


def test_pauses_of_a_component_and_a_category_end_one_by_one(connection, till):
    """Messages are handled once both are over."""
    till.send("1a")
    pause(connection, "till")
    pause(connection, "till", "--category", TILLS)
    resume(connection, "till")
    assert till.drain() == {}
    resume(connection, "till", "--category", TILLS)
    assert till.drain() == {"handled": 1}


def test_a_read_model_is_paused(connection, store):
    """Its rows stay as they are, and catch up."""
    consumers.drain(one_by_one(), address(connection))
    pause(connection, "occupancy_1")
    book(store, 1, 2)
    assert consumers.drain(one_by_one(), address(connection)).counts == {}
    resume(connection, "occupancy_1")
    consumers.drain(one_by_one(), address(connection))
    assert nights(connection) == {1: 1, 2: 1}


def test_recurring_commands_are_sent_to_a_paused_component(connection, store):
    """They wait with the others."""
    consumers.drain(hotels(), address(connection))
    connection.execute("UPDATE reservation.series SET reached = reached - interval '1 year'")
    pause(connection, "hotel")
    with logging(hotels(), address(connection)) as log:
        log.wait_for("tick_sent")
        log.wait_for("scheduled_written")
    assert len(list(store.read_category(SENT))) == 1
    assert list(store.read_category("hotel")) == []
    resume(connection, "hotel")
    consumers.drain(hotels(), address(connection))
    assert [message.type for message in store.read_category("hotel")] == ["DayClosed"]


# How soon


class Stopping:
    """Pauses a component within one call of its handler, and waits until its consumer knows it.

    Nobody is notified: a consumer that works looks by itself.
    """

    def __init__(self, connection, component, at, log):
        self._address, self._component, self._at, self._log = (
            address(connection),
            component,
            at,
            log,
        )
        self.calls = 0

    def __call__(self, *_):
        self.calls += 1
        if self.calls == self._at:
            with psycopg.connect(self._address, autocommit=True) as connection:
                connection.execute(
                    "INSERT INTO reservation.pauses (component, reason) VALUES (%s, 'why')",
                    [self._component],
                )
            self._log.wait_until("consumer_paused")


def test_a_pause_ends_a_long_batch(connection, till):
    """What was handled is committed, and the rest of the batch waits: it was read, no more."""
    names = [f"{n}a" for n in range(1, 30)]
    till.send(*names)
    with logged() as log:
        till.before = Stopping(connection, "till", 3, log)
        with hosted(till.component, address(connection)):
            until(lambda: till.paid() == names[:3])
            assert position(connection, TILLS) == till.position(names[2])
            resume(connection, "till")
            until(lambda: till.paid() == names)
    assert till.calls == names
    assert letters(connection) == []


def test_a_pause_ends_a_long_batch_of_letters(connection):
    """Those that were handled are committed; the others are as they were."""
    till = Till(connection)
    till.failing = {"1a", "2a", "3a"}
    till.send("1a", "2a", "3a", "3b")
    till.drain()
    till.failing, till.calls = set(), []
    till.retry()
    with logged() as log:
        till.before = Stopping(connection, "till", 2, log)
        with hosted(till.component, address(connection)):
            until(lambda: till.paid() == ["1a", "2a"])
            assert reasons(connection)[2:] == [("waiting", "handler", 0), ("parked", "parked", 0)]
            resume(connection, "till")
            until(lambda: till.paid() == ["1a", "2a", "3a", "3b"])
    assert till.calls == ["1a", "2a", "3a", "3b"]


def test_a_pause_ends_a_long_batch_of_a_read_model(connection, store, monkeypatch):
    """The rows of the calls that were made are committed."""
    consumers.drain(one_by_one(), address(connection))
    book(store, *range(20))
    with logged() as log:
        stopping = Stopping(connection, "occupancy_1", 4, log)
        take = occupancy.take
        monkeypatch.setattr(occupancy, "take", lambda *given: (take(*given), stopping()))
        with hosted(one_by_one(), address(connection)):
            until(lambda: len(nights(connection)) == 4)
            resume(connection, "occupancy_1")
            until(lambda: len(nights(connection)) == 20)
    assert stopping.calls == 20


def test_a_pause_ends_a_batch_of_async_calls(connection, store, database_url):
    """Calls that have begun end, and are committed while the pause lasts; no other begins."""
    made = Notices(store, database_url, concurrency=2)
    made.drain()
    names = [f"{n}a" for n in range(8)]
    made.send(*names)
    go = None

    async def handle(command, customer, context):
        nonlocal go
        go = go or asyncio.Event()
        made.calls.append(command.notice_id)
        if len(made.calls) == 2:
            await asyncio.to_thread(stopping)
            go.set()
        await go.wait()
        return await Notices.handle(made, command, customer, context)

    with logged() as log:
        stopping = Stopping(connection, "notice", 1, log)
        paused = Notices(store, database_url, handler=handle, concurrency=2)
        with hosted(paused.component, database_url):
            until(lambda: len(made.notified()) == 2)
            begun = {name for name, _ in made.notified()}
            assert set(made.calls) == begun
            resume(connection, "notice")
            until(lambda: len(made.notified()) == 8)
    assert letters(connection) == [] or {one["state"] for one in letters(connection)} == {"handled"}


def test_a_pause_ends_a_backlog_of_small_batches(connection, till):
    """At most the message in work is handled after the consumer has seen it."""
    names = [f"{n}a" for n in range(1, 2000)]
    till.send(*names)
    with logged() as log, hosted(till.component, address(connection), batch_size=1):
        until(lambda: len(till.calls) > 3)
        connection.execute(
            "INSERT INTO reservation.pauses (component, reason) VALUES ('till', '.')"
        )
        log.wait_until("consumer_paused")
        called = len(till.calls)
        assert called < len(names)
        until(lambda: till.paid() == till.calls)
        assert len(till.calls) <= called + 1


@pytest.mark.parametrize("notices", ["on", "off"])
def test_a_consumer_at_rest_knows_a_pause_before_the_next_message(
    connection, till, notices, monkeypatch
):
    """With notices directly, though it asks for nothing; without them it asks before it reads."""
    command(connection, "store", "notices", notices)
    with logged() as log, hosted(till.component, address(connection)):
        log.wait_until("notice_awaited" if notices == "on" else "notice_missing")
        till.send("1a")
        until(lambda: till.paid() == ["1a"])
        if notices == "on":
            monkeypatch.setattr(membership, "REBALANCE_INTERVAL", 3600.0)
            log.wait_until("batch_committed")
        for n in range(5):
            pause(connection, "till")
            till.send(f"1{'bcdef'[n]}")
            log.wait_until("consumer_paused", n + 1)
            assert till.calls == [f"1{letter}" for letter in "abcdef"[: n + 1]]
            resume(connection, "till")
            until(lambda n=n: len(till.paid()) == n + 2)


def test_a_paused_consumer_stops_and_starts_paused(connection, till):
    """It gives its partitions back as any; the next process has seen nothing of the pause."""
    pause(connection, "till")
    till.send("1a")
    with logging(till.component, address(connection)) as log:
        log.wait_for("consumer_paused", paused_by=connection.info.user, reason="provider migration")
    log.wait_for("consumer_stopped")
    assert till.drain() == {}
    assert till.calls == []
