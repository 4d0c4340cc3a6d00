"""Pauses: what a person stops waits, in every process, and is handled when it is resumed."""

import asyncio
import json

import psycopg
import pytest

import consumers
from bank import account
from consumers.group import membership  # noqa: TID251  so that only a notice can wake it up
from reservation import Component, Retry
from reservation.strategies import Processed
from tests.apps import occupancy
from tests.apps.bank import READS, RESERVED, address, event_types
from tests.apps.nightly import SENT, hotels
from tests.apps.occupancy import Cancelled, book, by_sets, nights, one_by_one
from tests.consumers.builders import TILLS, Paid, Pay, Till, letters, reasons, write_raw
from tests.consumers.test_async_handlers import Notices
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, logged, logging, until
from tests.support.controls import COMMANDS, deposit, open_, withdraw

LATER = Retry(attempts=3, first="1h", on=ValueError)
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


def versions(connection):
    """Return the versions of read models as `models list` prints them."""
    env = {"RESERVATION_DATABASE_URL": address(connection)}
    return json.loads(invoke_cli("models", "list", "--json", env=env).stdout)["versions"]


def position(connection, category):
    return connection.execute(POSITION, [category]).fetchone()[0]


@pytest.fixture
def till(connection):
    """Give a till that was run once, so that the store knows it."""
    till = Till(connection)
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


def test_letters_of_a_paused_consumer_wait(connection):
    """A retry that is due is made after the pause, with the attempts that are left."""
    till = Till(connection, retry=LATER)
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
    assert [one["paused"] for one in versions(connection)] == [True]
    resume(connection, "occupancy_1")
    consumers.drain(one_by_one(), address(connection))
    assert nights(connection) == {1: 1, 2: 1}
    assert [one["paused"] for one in versions(connection)] == [False]


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
        log.wait_until("notice_awaited" if notices == "on" else "consumer_started")
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


# Types and entities


def test_messages_of_a_paused_type_wait_before_their_handler(connection, store):
    """They are reserved as ever, take no attempt, and hold up their entity only."""
    consumers.drain(account, address(connection))
    pause(connection, "account", "--type", "Deposit")
    for number in ("1", "2"):
        store.write(open_(number), f"account:command-{number}")
    store.write([deposit("d1", account="1"), deposit("d1", account="1")], "account:command-1")
    store.write([withdraw("w1", "1.00", account="1")], "account:command-1")
    store.write([withdraw("w2", "1.00", account="2")], "account:command-2")
    counts = consumers.drain(account, address(connection)).counts
    assert (counts["reserved"], counts["duplicate"]) == (3, 1)
    assert event_types(store, "2") == ["Opened", "WithdrawalRejected"]
    assert event_types(store, "1") == ["Opened"]
    assert reasons(connection) == [("waiting", "paused", 0), ("parked", "parked", 0)]
    resume(connection, "account", "--type", "Deposit")
    consumers.drain(account, address(connection))
    assert event_types(store, "1") == ["Opened", "Deposited", "Withdrawn"]


def test_messages_of_a_paused_entity_wait(connection, till):
    """Those of others do not."""
    pause(connection, "till", "--entity", "till-1")
    till.send("1a", "2a", "1b", "2b")
    till.drain()
    assert till.paid() == ["2a", "2b"]
    assert reasons(connection) == [("waiting", "paused", 0), ("parked", "parked", 0)]
    pause(connection, "till", "--entity", "till-2")
    resume(connection, "till", "--entity", "till-1")
    till.send("2c")
    till.drain()
    assert till.paid() == ["2a", "2b", "1a", "1b"]


def test_a_pause_may_name_a_type_of_one_entity_in_one_category(connection, till):
    """It concerns what all of it names."""
    names = ("till", "--category", TILLS, "--type", "Pay", "--entity", "till-1")
    pause(connection, *names)
    pause(connection, "till", "--category", TILLS, "--type", "Refund")
    till.send("1a", "2a")
    till.drain()
    assert till.paid() == ["2a"]
    resume(connection, *names)
    till.drain()
    assert till.paid() == ["2a", "1a"]


def test_a_letter_of_a_paused_type_keeps_its_attempts(connection):
    """A retry that is due meanwhile is made after the pause."""
    till = Till(connection, retry=LATER)
    till.failing = {"1a"}
    till.send("1a", "1b")
    till.drain()
    ((_, _, before), _) = reasons(connection)
    assert before == 1
    calls = len(till.calls)
    pause(connection, "till", "--type", "Pay")
    till.let_next_attempts_be_due()
    till.drain()
    assert reasons(connection) == [("waiting", "paused", before), ("parked", "parked", 0)]
    assert len(till.calls) == calls
    resume(connection, "till", "--type", "Pay")
    till.failing = set()
    till.drain()
    assert till.paid() == ["1a", "1b"]


def test_a_paused_message_is_no_duplicate_later(connection):
    """A strategy that has looked at it forgets it, so that a message after it is handled once."""
    till = Till(connection, once=Processed())
    till.drain()
    pause(connection, "till", "--type", "Pay")
    till.send("1a")
    till.drain()
    resume(connection, "till", "--type", "Pay")
    till.drain()
    till.drain()
    assert (till.calls, till.paid()) == (["1a"], ["1a"])


def test_a_message_that_was_handled_before_does_not_wait(connection):
    """Its handler would not be called; a reissue is a duplicate as ever."""
    till = Till(connection, once=Processed("pay_id"))
    till.send("1a")
    till.drain()
    pause(connection, "till", "--type", "Pay")
    till.send("1a")
    assert till.drain() == {"duplicate": 1}
    assert letters(connection) == []


def test_a_message_of_a_former_name_is_of_its_type(connection, store):
    """Who pauses a type need not know under which names it was stored."""
    component = Component("till", id="till_id")
    component.message(Pay, former_names="Payment")
    component.handle(Pay, once=None)(lambda command, entity, context: context.follow(command, Paid))
    consumers.drain(component, address(connection))
    pause(connection, "till", "--type", "Pay")
    write_raw(connection, f"{TILLS}-1", "Payment", {"payId": "1a", "tillId": "1"})
    consumers.drain(component, address(connection))
    assert reasons(connection) == [("waiting", "paused", 0)]
    resume(connection, "till", "--type", "Pay")
    consumers.drain(component, address(connection))
    assert [message.type for message in store.read_category("till")] == ["Paid"]


def test_async_handlers_of_a_paused_type_are_not_called(connection, store, database_url):
    """Those of other entities go on."""
    made = Notices(store, database_url, once=Processed())
    made.drain()
    pause(connection, "notice", "--entity", "customer-1")
    pause(connection, "notice", "--entity", "notice-1")
    made.send("1a", "2a", "1b")
    made.drain()
    assert made.calls == ["2a"]
    assert reasons(connection) == [("waiting", "paused", 0), ("parked", "parked", 0)]
    resume(connection, "notice", "--all")
    made.drain()
    assert made.notified() == [("2a", 1), ("1a", 1), ("1b", 2)]


@pytest.mark.parametrize("make", [one_by_one, by_sets])
def test_a_type_or_a_stream_of_a_read_model_is_paused(connection, store, make):
    """The entities of a read model are the streams that it reads."""
    model = make()
    name = f"occupancy_{1 if make is one_by_one else 2}"
    consumers.drain(model, address(connection))
    pause(connection, name, "--type", "Cancelled")
    pause(connection, name, "--entity", "booking-b1")
    book(store, 1, booking="b1")
    book(store, 2, booking="b2")
    store.write(Cancelled("b2", 2), "booking-b2")
    book(store, 3, booking="b2")
    book(store, 4, booking="b3")
    consumers.drain(model, address(connection))
    schema = name
    assert nights(connection, schema) == {2: 1, 4: 1}
    resume(connection, name, "--all")
    consumers.drain(model, address(connection))
    assert nights(connection, schema) == {1: 1, 2: 0, 3: 1, 4: 1}


def test_letters_are_released_whoever_ends_the_pause(connection, till):
    """A consumer that runs sees that the row is gone; one that starts releases what was left."""
    pause(connection, "till", "--type", "Pay")
    till.send("1a")
    with logging(till.component, address(connection)) as log:
        log.wait_for("message_held_up", reason="paused")
        connection.execute("DELETE FROM reservation.pauses")
        until(lambda: till.paid() == ["1a"])
    pause(connection, "till", "--type", "Pay")
    till.send("1b")
    till.drain()
    connection.execute("DELETE FROM reservation.pauses")
    till.drain()
    assert till.paid() == ["1a", "1b"]


def test_what_is_still_paused_stays_so(connection, till):
    """One pause of several that concern a message is over."""
    pause(connection, "till", "--type", "Pay")
    pause(connection, "till", "--entity", "till-1")
    till.send("1a", "2a")
    till.drain()
    resume(connection, "till", "--type", "Pay")
    till.drain()
    assert till.paid() == ["2a"]
    assert till.letter("1a")["reason"] == "paused"
