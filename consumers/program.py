"""Running the consumers of components within a program, and draining what they have to handle.

`run` is for programs that host components beside other work. ``reservation start`` is for all
others: it runs them in a process of their own, and starts that again if it dies. `drain` is for
tests and scripts.

Both leave logging as the program has it. Where the program has configured structlog, events go to
it; otherwise they go to the logger ``reservation`` of the standard library.
"""

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import structlog
from psycopg import Connection

from consumers.group.compatibility import check_members
from consumers.group.inspection.stored_positions import categories, is_drained
from consumers.group.sizes import checked_sizes
from consumers.loop.consumer import Consumer
from consumers.loop.consuming import Consumers, Part
from consumers.loop.draining import CountingTelemetry, UntilDrained
from consumers.options import DEFAULT_BATCH_BYTES, Options
from consumers.runtime.observability.logs import Log
from consumers.runtime.session import Session
from consumers.runtime.stopping import Stop
from reservation.component import Component
from reservation.errors import DeclarationError
from reservation.inspection.process_declaration import ProcessDeclaration
from reservation.maintenance.event_types import check_event_types
from reservation.maintenance.reservation_names import check_names
from reservation.postgres.connection import connect
from reservation.read_models.read_model import ReadModel, component_of
from reservation.read_models.schemas import prepare
from reservation.store.schema.preconditions import check_preconditions

# What a dead letter keeps of the exception that a handler raised.
Errors = Literal["place", "full"]

# Any: components have entities of their own.
Runnable = Component[Any] | ReadModel

# Seconds between two looks at whether the program asked to stop.
LOOK = 0.1


class StopEvent(Protocol):
    """An event that stops `run`, such as a `threading.Event`."""

    def wait(self, timeout: float, /) -> bool:
        """Wait for so many seconds at most; return whether it is time to stop."""
        ...


@dataclass(frozen=True, slots=True)
class Drained:
    """Results of `drain`.

    Attributes:
        counts: how many messages became ``handled``, ``rejected``, ``reserved``, ``duplicate``,
            ``conflict``, ``ignored``, ``redelivered``, ``waiting``, ``parked``, ``dead`` and so on
            in the end; those that had been set aside before, and were tried again, too.
    """

    counts: Counter[str] = field(default_factory=Counter)

    @property
    def messages(self) -> int:
        """The number of messages; one that was reserved is another one as its copy."""
        return self.counts.total()


def run(
    components: Runnable | Sequence[Runnable],
    database_url: str,
    *,
    stop: StopEvent | None = None,
    batch_size: int = 1000,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    errors: Errors = "place",
) -> None:
    """Run all consumers of components until told to stop.

    Each category has a thread, in which its handlers are called. Called in the main thread, it
    also stops at SIGTERM and SIGINT, and restores their handlers in the end. It returns once the
    batches in flight are finished, for which there is no limit. A database that goes away is waited
    for. Dead letters, waiting and groups are as for ``reservation start``.

    Args:
        components: the component or read model, or several, each of another name.
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
        StoreReplacedError: a position was taken in another log.
        Crashed: something other than a handler raised an unexpected exception.
    """
    options = _options(batch_size, batch_bytes, errors)
    given = [components] if isinstance(components, Component | ReadModel) else components
    checked = [component_of(one) for one in given]
    check_names_differ(checked)
    with connect(database_url, autocommit=True) as connection:
        check_preconditions(connection)
        for component in checked:
            _check_store(connection, component)
    main = threading.current_thread() is threading.main_thread()
    with Stop(takes_signals=main) as stopping:
        parts = [
            Part(component, category, _log(component, category))
            for component in checked
            for category in categories(component)
        ]
        consumers = Consumers(parts, database_url, options, stopping)
        asked = stop or threading.Event()
        try:
            consumers.start()
            # A signal may interrupt any thread, and only the main thread handles it, between looks.
            while not stopping.requested and not asked.wait(LOOK):
                pass
        finally:
            stopping.request()
            consumers.join()


def drain(
    component: Runnable,
    database_url: str,
    *,
    batch_size: int = 1000,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    errors: Errors = "place",
) -> Drained:
    """Handle all messages that a component's categories hold, in the calling thread.

    Messages that handlers write to these categories meanwhile are handled too, and so are those
    that wait for another attempt within a second, and the dead letters that ``reservation
    dead-letters retry`` asked to handle again. It returns once the component's consumers are at the
    end of every category; other processes may do part of the work. A message that cannot be handled
    becomes a dead letter, as for ``reservation start``.

    Args:
        component: the component, or the read model.
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
        StoreReplacedError: a position was taken in another log.
        Crashed: something other than a handler raised an unexpected exception.
    """
    options = _options(batch_size, batch_bytes, errors)
    component = component_of(component)
    counting = CountingTelemetry()
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
                    options,
                    telemetry=counting,
                    log=log,
                )
                with UntilDrained(session, component.name, category) as stop:
                    consumer.run(stop)
            left = [
                category
                for category in categories(component)
                if not is_drained(session.connection, component.name, category)
            ]
    return Drained(counting.counts)


def check_names_differ(components: Sequence[Component]) -> None:
    """Refuse components that would share their positions, because they have one name."""
    names = [component.name for component in components]
    for name in names:
        if names.count(name) > 1:
            raise DeclarationError(
                f"Two components are named {name!r}, and positions are stored by the component's "
                f"name; give each component a name of its own, and each only once"
            )


def _options(batch_size: int, batch_bytes: int, errors: Errors) -> Options:
    if errors not in get_args(Errors):
        raise DeclarationError(f"errors={errors!r} is neither 'place' nor 'full'")
    return Options(batch_size, batch_bytes, keep_text=errors == "full")


def _check_store(connection: Connection[Any], component: Component) -> None:
    """Refuse a store that ``reservation start`` refuses."""
    check_names(connection, component)
    check_event_types(connection, component)
    checked_sizes(connection, component, categories(component), None)
    check_members(connection, component.name, ProcessDeclaration.of(component))
    prepare(connection, component)


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
