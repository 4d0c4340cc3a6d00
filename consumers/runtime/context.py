"""The shared context of one consumer, as long as it has one connection."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from psycopg import Connection

from consumers.archived import ArchivedMessages
from consumers.options import Options
from consumers.pauses.current import Pauses
from consumers.runtime.in_flight import InFlight
from consumers.runtime.losses import Losses
from consumers.runtime.observability.error_detail import PLACE_ONLY, ErrorDetail
from consumers.runtime.observability.log_context import LogContext
from consumers.runtime.observability.logs import Log
from consumers.runtime.observability.spans import Spans
from consumers.runtime.running_calls import RunningCalls
from reservation.blocks.connected import Connect
from reservation.component import Component
from reservation.declaration.table import declarations


def _ignore() -> None:
    """Ignore the heartbeat."""


def _nobody(seconds: float) -> None:
    """Ignore a scheduled message."""
    del seconds


@dataclass(frozen=True, slots=True)
class ConsumerContext:
    """One consumer of a component, on the connection that it has now.

    Attributes:
        connection: that of the transactions that read and write its batches.
        component: the component whose handlers decide.
        category: the category that is read.
        log: the consumer's logger.
        heartbeat: called before each handler, as a sign that the process is not stuck.
        schedules: called with the seconds until a message is due that handlers have scheduled.
        running: the calls of async handlers.
        connect: what gives async handlers connections of their own; None if nothing does.
        detail: what is kept of exceptions for which messages fail.
        spans: what makes the consumer's spans.
        losses: the connections that were lost during calls of handlers.
        options: how consumers work.
        in_flight: the record of what the consumer has in flight, which outlives the process.
        pauses: what is paused of the consumer; None if nobody looks.
        archived: the category in an archive; None if only the store is read.
        log_context: what structlog's context variables say in the component's code.
    """

    connection: Connection[Any]
    component: Component
    category: str
    log: Log
    heartbeat: Callable[[], None] = _ignore
    schedules: Callable[[float], None] = _nobody
    running: RunningCalls = field(default_factory=RunningCalls)
    connect: Connect | None = None
    detail: ErrorDetail = PLACE_ONLY
    spans: Spans = field(default_factory=Spans)
    losses: Losses = field(default_factory=Losses)
    options: Options = field(default_factory=Options)
    in_flight: InFlight = field(default_factory=InFlight)
    pauses: Pauses | None = None
    archived: ArchivedMessages | None = None
    log_context: LogContext = field(init=False)

    def __post_init__(self) -> None:
        """Name the consumer and the category in what the component's code logs."""
        context = LogContext(self.component.name, self.category)
        object.__setattr__(self, "log_context", context)

    @classmethod
    def of(
        cls, connection: Connection[Any], component: Component, category: str
    ) -> "ConsumerContext":
        """Return a context with a new logger, and without a heartbeat."""
        return cls(connection, component, category, Log(component.name, category))

    def calls(self, position: int) -> None:
        """Note that the handler of a message is about to be called."""
        self.in_flight.calls(position)
        self.heartbeat()

    @property
    def is_paused(self) -> bool:
        """Whether no further message is to be handled."""
        return self.pauses is not None and self.pauses.stops_consumer

    @property
    def reserves(self) -> bool:
        """Whether the category is the component's command category, whose commands are reserved."""
        return self.category == declarations(self.component).command_category
