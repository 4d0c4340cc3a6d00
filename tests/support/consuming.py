"""A consumer that runs in a thread of the test's own process, and waiting for what it does."""

import contextlib
import threading
import time

import psycopg
import structlog

import consumers
from consumers.loop.consumer import Consumer
from consumers.options import Options
from consumers.runtime.stopping import Stop
from tests.apps.bank import session
from tests.support.started import PATIENCE, matches

_OF_CONSUMER = ("telemetry", "notices", "limited")


@contextlib.contextmanager
def running(component, database_url, category, stop=None, **options):
    """Run the consumer of a category in a thread, while the block lasts."""
    stop = stop or Stop(takes_signals=False)
    with session(database_url) as opened:
        given = {name: options.pop(name) for name in _OF_CONSUMER if name in options}
        consumer = Consumer(opened, component, category, Options(**options), **given)
        thread = threading.Thread(target=consumer.run, args=[stop])
        thread.start()
        try:
            yield thread, stop
        finally:
            stop.request()
            ended(thread)


@contextlib.contextmanager
def hosted(component, database_url, **options):
    """Run a component's consumers in a thread of this process, while the block lasts."""
    stop = threading.Event()
    failures = []

    def work():
        try:
            consumers.run(component, database_url, stop=stop, **options)
        except BaseException as error:  # noqa: BLE001  raised again below
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        ended(thread)
    if failures:
        raise failures[0]


def ended(thread):
    """Wait until a thread that was asked to stop has ended."""
    thread.join(PATIENCE)
    assert not thread.is_alive(), "a consumer does not stop"


@contextlib.contextmanager
def members(component, database_url, category, size=2):
    """Run a consumer for each partition of a category, in a thread each, while the block lasts."""
    with contextlib.ExitStack() as stack:
        for _ in range(size):
            stack.enter_context(running(component, database_url, category, partitions=size))
        with psycopg.connect(database_url, autocommit=True) as connection:
            until(lambda: connection.execute(_HELD, [category]).fetchone() == (size,))
        yield


# How many members hold a partition of a category.
_HELD = "SELECT count(DISTINCT holder) FROM reservation.leases WHERE category = %s"


class Logged:
    """The events that consumers of this process log.

    Attributes:
        events: all of them, in order.
    """

    def __init__(self, events, thread=None):
        self.events = events
        self._thread = thread
        self._seen = 0

    def named(self, event, **fields):
        """Return the events of a name and with these fields."""
        return [one for one in list(self.events) if matches(one, event, fields)]

    def wait_for(self, event, **fields):
        """Wait for an event that comes after those that were waited for before, and return it."""

        def found():
            events = enumerate(self.events[self._seen :], self._seen + 1)
            return next((one for one in events if matches(one[1], event, fields)), None)

        self._seen, logged = until(found, self._thread)
        return logged

    def wait_until(self, event, times=1, **fields):
        """Wait until an event was logged so many times in all, and return the first."""
        until(lambda: len(self.named(event, **fields)) >= times, self._thread)
        return self.named(event, **fields)[0]


@contextlib.contextmanager
def logged():
    """Give the events that consumers of this process log while the block lasts."""
    before = structlog.get_config() if structlog.is_configured() else None
    capture = structlog.testing.LogCapture()
    structlog.configure(processors=[capture])
    try:
        yield Logged(capture.entries)
    finally:
        structlog.reset_defaults()
        if before is not None:
            structlog.configure(**before)


@contextlib.contextmanager
def logging(component, database_url, **options):
    """Run a component's consumers while the block lasts, and give what they log."""
    with logged() as log, hosted(component, database_url, **options) as thread:
        yield Logged(log.events, thread)


def until(check, thread=None):
    """Look until something is so, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := check()):
        assert thread is None or thread.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return answer
