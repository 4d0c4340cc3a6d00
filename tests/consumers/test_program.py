"""Running a component from a program, and draining it: `consumers.run` and `consumers.drain`."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
import structlog

import consumers
from bank import account
from consumers import Drained
from reservation import Component, Context, Key
from reservation.errors import (
    DatabaseUnavailableError,
    DeclarationError,
    SchemaError,
    StoreError,
    StoreReplacedError,
)
from tests.apps.bank import broken, event_types
from tests.support.consuming import hosted, logged, until
from tests.support.controls import COMMANDS, deposit, open_, withdraw
from tests.support.started import PATIENCE


@dataclass(frozen=True)
class Count:
    counter_id: str
    left: int = 0


@dataclass(frozen=True)
class Counted:
    left: int


def counter(handler: Any, **options: Any) -> Component[None]:
    """Return a component whose handler is this."""
    component = Component("counter", id="counter_id", **options)
    component.handle(Count, once=None)(handler)
    return component


def connections(connection: Any) -> list[str]:
    """Return the names of the other connections to the database, but for the tests' own."""
    rows = connection.execute(
        "SELECT application_name FROM pg_stat_activity"
        " WHERE datname = current_database() AND backend_type = 'client backend'"
        " AND pid <> pg_backend_pid() AND application_name <> 'tests'"
    )
    return [name for (name,) in rows]


@pytest.fixture
def _structlog_unset() -> Iterator[None]:
    """Have structlog as in a program that did not configure it."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


# Draining


def test_everything_is_handled_and_counted(store, database_url, connection):
    """`drain` handles and counts the commands, their reissues and the copies."""
    for command in (open_(), deposit(), deposit(), withdraw(), open_()):
        store.write(command, COMMANDS)
    done = consumers.drain(account, database_url)
    assert done.counts == {"handled": 3, "reserved": 2, "duplicate": 2}
    assert done.messages == 7
    assert event_types(store) == ["Opened", "Deposited", "Withdrawn"]
    assert broken(connection) == {}


def test_draining_again_finds_nothing(store, database_url):
    """A second drain, or one of an empty store, finds nothing."""
    assert consumers.drain(account, database_url) == Drained()
    store.write(open_(), COMMANDS)
    assert consumers.drain(account, database_url).messages == 1
    assert consumers.drain(account, database_url).messages == 0


def test_messages_that_handlers_write_are_drained_too(store, database_url):
    """Messages that handlers write are drained too, also in a category already drained."""

    def handle(command: Count, entity: None, context: Context) -> Counted:
        if command.left:
            context.write(Count(command.counter_id, command.left - 1), "counter:command-1")
        return Counted(command.left)

    component = Component("counter", id="counter_id")
    component.handle(Count, key=Key(("counter_id", "left"), into="counting"))(handle)
    store.write(Count("1", 3), "counter:command-1")
    done = consumers.drain(component, database_url, batch_size=2)
    assert done.counts == {"reserved": 4, "handled": 4}
    assert [event.decode(Counted).left for event in store.read_stream("counter-1")] == [3, 2, 1, 0]


def test_dead_letters_are_a_result(store, database_url):
    """Dead letters and parked messages are in the result, and other entities are handled."""

    def handle(command: Count, entity: None, context: Context) -> Counted:
        if command.left == 0:
            raise ValueError
        return Counted(command.left)

    for counter_id, left in (("1", 0), ("2", 1), ("1", 2)):
        store.write(Count(counter_id, left), f"counter:command-{counter_id}")
    done = consumers.drain(counter(handle, attempts=1), database_url)
    assert done.counts == {"dead": 1, "parked": 1, "handled": 1}


def test_a_drain_that_loses_its_connection_can_be_repeated(store, database_url, connection):
    """A drain that loses its connection leaves no partial work, and the next one handles it."""
    calls = []

    def handle(command: Count, entity: None, context: Context) -> Counted:
        calls.append(command)
        if len(calls) == 1:
            with psycopg.connect(database_url, autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(%s, 10000)",
                    [context.connection.info.backend_pid],
                )
            context.connection.execute("SELECT 1")
        return Counted(command.left)

    store.write(Count("1"), "counter:command-1")
    with pytest.raises(DatabaseUnavailableError):
        consumers.drain(counter(handle), database_url)
    assert consumers.drain(counter(handle), database_url).counts == {"handled": 1}
    assert len(list(store.read_stream("counter-1"))) == 1


def test_an_interrupt_ends_a_drain(store, database_url):
    """An interrupt ends a drain and is no failure of the message."""
    signals = [signal.SIGINT]

    def handle(command: Count, entity: None, context: Context) -> Counted:
        if signals:
            signal.raise_signal(signals.pop())
        return Counted(command.left)

    store.write(Count("1"), "counter:command-1")
    with pytest.raises(KeyboardInterrupt):
        consumers.drain(counter(handle), database_url)
    assert consumers.drain(counter(handle), database_url).counts == {"handled": 1}


def test_invalid_arguments_of_drain_and_run_are_refused(database_url, empty_database_url):
    """A wrong address, store, declaration or argument is an error before anything runs."""
    with pytest.raises(DatabaseUnavailableError):
        consumers.drain(account, "postgresql:///?host=/nowhere")
    for call in (consumers.run, consumers.drain):
        with pytest.raises(SchemaError):
            call(account, empty_database_url)
        with pytest.raises(DeclarationError, match="handles no command"):
            call(Component("empty", id="id"), database_url)
        with pytest.raises(StoreError, match="A batch of 0 messages"):
            call(account, database_url, batch_size=0)


def test_a_drain_waits_for_messages_that_others_handle(store, database_url, connection):
    """A drain returns when no message is left, including those that others handle."""
    begun, go_on = threading.Event(), threading.Event()

    def handle(command: Count, entity: None, context: Context) -> Counted:
        begun.set()
        assert go_on.wait(PATIENCE)
        return Counted(command.left)

    store.write(Count("1"), "counter:command-1")
    done: list[Drained] = []
    drain = threading.Thread(
        target=lambda: done.append(consumers.drain(counter(handle), database_url))
    )
    with hosted(counter(handle), database_url):
        assert begun.wait(PATIENCE)
        drain.start()
        until(lambda: "reservation counter" in connections(connection))
        assert not done
        go_on.set()
        drain.join(PATIENCE)
    assert done == [Drained()]
    assert len(list(store.read_stream("counter-1"))) == 1


def test_no_connection_no_member_and_no_thread_is_left(store, database_url, connection):
    """So the next consumer need not wait."""
    threads = threading.active_count()
    store.write(open_(), COMMANDS)
    consumers.drain(account, database_url)
    assert connection.execute("SELECT count(*) FROM reservation.members").fetchone() == (0,)
    until(lambda: connections(connection) == [])
    until(lambda: threading.active_count() == threads)


@pytest.mark.usefixtures("_structlog_unset")
def test_where_the_program_does_not_configure_structlog_events_go_to_logging(
    store, database_url, caplog, capfd
):
    """Without a structlog configuration, log events go to `logging` with their levels."""
    store.write(open_(), COMMANDS)
    with caplog.at_level(logging.INFO, logger="reservation"):
        consumers.drain(account, database_url)
    logged = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    expected = "event='consumer_started' consumer='account' category='account:command'"
    assert logged[0][:2] == ("reservation", "INFO")
    assert logged[0][2].startswith(expected)
    assert not structlog.is_configured()
    assert capfd.readouterr() == ("", "")


def test_where_the_program_configures_structlog_events_go_there(store, database_url):
    """With a structlog configuration, log events go through its processors."""
    store.write(open_(), COMMANDS)
    with logged() as log:
        consumers.drain(account, database_url)
    assert log.named("batch_committed", consumer="account")


# Running


def test_a_component_runs_in_a_thread_until_the_program_stops_it(store, database_url, connection):
    """A component runs in a thread until stopped and leaves nothing behind."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    store.write(open_(), COMMANDS)
    with hosted(account, database_url):
        until(lambda: event_types(store) == ["Opened"])
        store.write(deposit(), COMMANDS)
        until(lambda: event_types(store) == ["Opened", "Deposited"])
        assert handlers == [
            signal.getsignal(signal_number) for signal_number in (signal.SIGINT, signal.SIGTERM)
        ]
    assert connection.execute("SELECT count(*) FROM reservation.members").fetchone() == (0,)
    until(lambda: connections(connection) == [])
    assert broken(connection) == {}


@dataclass(frozen=True)
class Ping:
    ping_id: str


def test_several_components_run_beside_each_other(store, database_url, connection):
    """Each category in a thread of its own, whose handlers may wait for each other."""
    ping, met = Component("ping", id="ping_id"), threading.Barrier(2, timeout=PATIENCE)
    pong = Component("pong", id="ping_id")

    def meet(command: Ping, entity: None, context: Context) -> None:
        met.wait()

    for component in (ping, pong):
        component.handle(Ping, once=None)(meet)
        store.write(Ping("1"), f"{component.name}:command-1")
    with hosted([ping, pong], database_url) as thread:
        done = "SELECT count(*) FROM reservation.positions WHERE position > 0"
        until(lambda: connection.execute(done).fetchone() == (2,), thread)
    with pytest.raises(DeclarationError, match="Two components are named 'ping'"):
        consumers.run([ping, ping], database_url)


def signalled(store, database_url, number):
    """Run the bank in the main thread until this signal comes."""

    def send() -> None:
        until(lambda: event_types(store) == ["Opened"])
        os.kill(os.getpid(), number)

    store.write(open_(), COMMANDS)
    sender = threading.Thread(target=send)
    sender.start()
    consumers.run(account, database_url)
    sender.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_in_the_main_thread_a_signal_stops_it(store, database_url, number):
    """Afterwards the program hears its signals as before, and none is blocked."""
    heard: list[int] = []
    before = signal.signal(number, lambda *_: heard.append(number))
    try:
        signalled(store, database_url, number)
        assert heard == []
        assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        signal.raise_signal(number)
        assert heard == [number]
    finally:
        signal.signal(number, before)


def test_a_signal_whose_handler_cannot_be_restored_is_handled_by_default(
    store, database_url, monkeypatch
):
    """It was not installed from Python."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(signal, "getsignal", lambda _: None)
            signalled(store, database_url, signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def test_the_error_of_one_consumer_ends_all_and_is_raised(store, database_url, connection):
    """An error of one consumer ends the others and is raised."""
    for command in (open_(), deposit()):
        store.write(command, COMMANDS)
    consumers.drain(account, database_url)
    connection.execute(
        "UPDATE reservation.moves SET message_id = gen_random_uuid()"
        " WHERE category = 'accountTransaction'"
    )
    with pytest.raises(StoreReplacedError, match="accountTransaction"):
        consumers.run(account, database_url)
    until(lambda: connections(connection) == [])
