"""Running a component's consumers within a program, and draining what they have to handle.

`run` is for programs that host a component beside other work. ``reservation start`` is for all
others: it gives each consumer a process, and starts again one that dies. `drain` is for tests and
scripts.

Both leave logging as the program has it. Where the program has configured structlog, events go to
it; otherwise they go to the logger ``reservation`` of the standard library.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, get_args

import structlog
from psycopg import Connection

from consumers.batch.batch_size import DEFAULT_BATCH_BYTES
from consumers.group.compatibility import check_members
from consumers.group.inspection.stored_positions import categories, is_drained
from consumers.group.membership import GroupShare
from consumers.group.sizes import checked_sizes
from consumers.loop.consumer import Consumer
from consumers.loop.consuming import consume
from consumers.loop.draining import Counting, UntilDrained
from consumers.runtime.observability.logs import Log
from consumers.runtime.session import Session
from consumers.runtime.stopping import Stop
from reservation.component import Component
from reservation.errors import DeclarationError
from reservation.inspection.process_declaration import ProcessDeclaration
from reservation.maintenance.event_types import check_event_types
from reservation.maintenance.reservation_names import check_names
from reservation.postgres.connection import connect
from reservation.store.argument_checks import check_batch_bytes, check_batch_size
from reservation.store.schema.preconditions import check_preconditions

# What a dead letter keeps of the exception that a handler raised.
Errors = Literal["place", "full"]

# Seconds between two looks at whether the program asked to stop.
LOOK = 0.1


class StopEvent(Protocol):
    """What a program asks `run` to stop with, such as a `threading.Event`."""

    def wait(self, timeout: float, /) -> bool:
        """Wait for so many seconds at most; return whether it is time to stop."""
        ...


@dataclass(frozen=True, slots=True)
class Drained:
    """What `drain` handled.

    Attributes:
        counts: how many messages became ``handled``, ``rejected``, ``reserved``, ``duplicate``,
            ``conflict``, ``ignored``, ``redelivered``, ``dead``, ``parked`` and so on; without
            dead letters that were handled again.
    """

    counts: Counter[str] = field(default_factory=Counter)

    @property
    def messages(self) -> int:
        """How many messages there were; one that was reserved is another one as its copy."""
        return self.counts.total()


def run(
    component: Component,
    database_url: str,
    *,
    stop: StopEvent | None = None,
    batch_size: int = 1000,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    errors: Errors = "place",
) -> None:
    """Run a component's consumers until told to stop.

    Each category has a thread, in which its handlers are called. Called in the main thread, it
    also stops at SIGTERM and SIGINT, and restores their handlers in the end. It returns once the
    batches in hand are finished, for which there is no limit. A database that goes away is waited
    for. Dead letters, waiting and groups are as for ``reservation start``.

    Args:
        component: the component.
        database_url: a libpq URL or connection string; empty for libpq's own defaults.
        stop: what the program sets to stop the consumers; None if only signals stop them.
        batch_size: how many messages to handle in one transaction, at least 1.
        batch_bytes: how many bytes of data and metadata to handle in one transaction, at least 1,
            by default 16 MiB. A batch ends with the message that reaches them.
        errors: what a dead letter keeps of the exception: "place" its class and where it was
            raised, "full" also its text and its traceback, which may hold data.

    Raises:
        DeclarationError: the declaration is incomplete, the store has reservations under other
            names than it declares, or events of types that it does not declare.
        DatabaseUnavailableError: the database cannot be reached at the start.
        SchemaError: the schemas are missing, or not in the version of this package.
        SessionError: a pooler does not give the consumers sessions of their own.
        GroupError: a category has several partitions in which messages of an entity would not stay
            in order, or there is a member of a group that this process cannot work beside.
        ForeignPositionError: a position was taken in another log.
        Crashed: something other than a handler raised an unexpected exception.
    """
    keep_text = _check_errors(errors) == "full"
    _check(component, batch_size, batch_bytes)
    with connect(database_url, autocommit=True) as connection:
        check_preconditions(connection)
        _check_store(connection, component)
    main = threading.current_thread() is threading.main_thread()
    with Stop(takes_signals=main) as stopping:
        running = _Threads(stopping)
        try:
            for category in categories(component):
                log = _log(component, category)
                running.start(
                    category,
                    partial(
                        consume,
                        component,
                        category,
                        database_url,
                        stopping,
                        batch_size=batch_size,
                        batch_bytes=batch_bytes,
                        log=log,
                        keep_text=keep_text,
                    ),
                )
            running.wait(stop or threading.Event())
        finally:
            stopping.request()
            running.join()


def drain(
    component: Component,
    database_url: str,
    *,
    batch_size: int = 1000,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    errors: Errors = "place",
) -> Drained:
    """Handle all messages that a component's categories hold, in the calling thread.

    Messages that handlers write to these categories meanwhile are handled too, and so are the dead
    letters that ``reservation dead-letters retry`` asked to handle again. It returns once the
    component's consumers are at the end of every category; other processes may do part of the work.
    A message that cannot be handled becomes a dead letter, as for ``reservation start``.

    Args:
        component: the component.
        database_url: a libpq URL or connection string; empty for libpq's own defaults.
        batch_size: how many messages to handle in one transaction, at least 1.
        batch_bytes: how many bytes of data and metadata to handle in one transaction, at least 1,
            by default 16 MiB. A batch ends with the message that reaches them.
        errors: what a dead letter keeps of the exception; see `run`.

    Returns:
        What became of the messages that this call handled.

    Raises:
        StoreError: the database is away, or refuses what a consumer asks for. It is not waited
            for, except for locks of other transactions.
        DeclarationError: the declaration is incomplete, the store has reservations under other
            names than it declares, or events of types that it does not declare.
        GroupError: a category has several partitions in which messages of an entity would not stay
            in order, or there is a member of a group that this process cannot work beside.
        ForeignPositionError: a position was taken in another log.
        Crashed: something other than a handler raised an unexpected exception.
    """
    keep_text = _check_errors(errors) == "full"
    _check(component, batch_size, batch_bytes)
    counting = Counting()
    log = _log(component, categories(component)[0])
    with Session(database_url, f"reservation {component.name}", log, counting) as session:
        _check_store(session.connection, component)
        left = categories(component)
        while left:
            for category in left:
                log = _log(component, category)
                consumer = Consumer(
                    session,
                    component,
                    category,
                    batch_size=batch_size,
                    batch_bytes=batch_bytes,
                    telemetry=counting,
                    log=log,
                    keep_text=keep_text,
                )
                with UntilDrained(session, component.name, category) as stop:
                    consumer.run(stop)
            left = [
                category
                for category in categories(component)
                if not is_drained(session.connection, component.name, category)
            ]
    return Drained(counting.counts)


class _Threads:
    """A thread for each consumer; when one ends, all do."""

    def __init__(self, stopping: Stop) -> None:
        self._stopping = stopping
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def start(self, name: str, consume: Callable[[], None]) -> None:
        """Run a consumer in a thread of its own."""

        def work() -> None:
            try:
                consume()
            except BaseException as error:  # noqa: BLE001  raised again by `join`
                self._failures.append(error)
            finally:
                self._stopping.request()

        # A host that ends without waiting for `run` need not wait for these either: what was not
        # committed is rolled back.
        thread = threading.Thread(target=work, name=f"reservation {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait(self, stop: StopEvent) -> None:
        """Wait until the program asks to stop, a signal comes, or a consumer ends.

        A signal may interrupt any thread, and only the main thread handles it, between two looks.
        """
        while not self._stopping.requested and not stop.wait(LOOK):
            pass

    def join(self) -> None:
        """Wait until all have ended."""
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]


def _check_errors(errors: Errors) -> Errors:
    """Refuse a value that `errors` cannot have."""
    if errors not in get_args(Errors):
        raise DeclarationError(f"errors={errors!r} is neither 'place' nor 'full'")
    return errors


def _check(component: Component, batch_size: int, batch_bytes: int) -> None:
    """Refuse what ``reservation start`` refuses before it connects."""
    component.check()
    check_batch_size(batch_size)
    check_batch_bytes(batch_bytes)


def _check_store(connection: Connection[Any], component: Component) -> None:
    """Refuse a store that ``reservation start`` refuses."""
    check_names(connection, component)
    check_event_types(connection, component)
    checked_sizes(connection, component, categories(component), GroupShare())
    check_members(connection, component.name, ProcessDeclaration.of(component))


def _log(component: Component, category: str) -> Log:
    """Return the log of a consumer; where structlog is not set up, in the standard library."""
    if structlog.is_configured():
        return Log(component.name, category)
    return Log(component.name, category, _standard_logger())


def _standard_logger() -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger("reservation"),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.KeyValueRenderer(key_order=["event", "consumer", "category"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger
