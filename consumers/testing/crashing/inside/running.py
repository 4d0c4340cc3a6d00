"""One run of the component, in a process of its own."""

from collections.abc import Callable, Mapping
from typing import Any

from psycopg import Connection

from consumers.batch.batch_runner import BatchRunner
from consumers.group.inspection.stored_positions import is_drained
from consumers.group.positions import HeldPartition, HeldPartitions
from consumers.loop.consumer import Consumer
from consumers.loop.draining import CountingTelemetry, UntilDrained
from consumers.options import Options
from consumers.runtime.context import ConsumerContext
from consumers.runtime.observability.logs import Log
from consumers.runtime.session import Session
from consumers.testing.crashing.inside.calls import Calls
from consumers.testing.crashing.inside.cutting import Cut, die
from consumers.testing.crashing.inside.observing.call_observer import note_threads_and_tasks
from consumers.testing.crashing.inside.observing.sessions import Sessions
from consumers.testing.crashing.orders import Began, Done, HandledStep, Order, Record
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.postgres.error_translation import TO_BE_RETRIED
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.testing.crashing.inside", "running.sql")

# How often messages that wait for their next attempt are tried before a run ends.
_ROUNDS = 3


class _Counting(CountingTelemetry):
    """Counts, and says when a batch was committed."""

    def __init__(self, committed: Callable[[], None]) -> None:
        super().__init__()
        self._committed = committed

    def committed(
        self, counts: Mapping[str, int], seconds: float, set_aside: Mapping[int, str]
    ) -> None:
        """Count the messages of a batch."""
        super().committed(counts, seconds, set_aside)
        self._committed()


def run(component: Component, order: Order, calls: Calls, send: Callable[[Record], None]) -> None:
    """Run the component as an order says; does not return if that is to kill it."""
    stop: UntilDrained | None = None

    def committed() -> None:
        calls.committed()
        if order.once and stop is not None:
            stop.request()

    counting = _Counting(committed)
    log = Log(component.name, declarations(component).command_category)
    with Session(order.address, f"reservation {component.name}", log, counting) as session:
        connection = session.connection
        cut = Cut(connection, _exchange(order), die, calls.exchange)
        calls.connection = connection
        if order.inspects:
            calls.sessions = Sessions(order.address, connection)
            note_threads_and_tasks()
        if order.steps:
            _handle(component, order.steps, connection, calls)
            send(Done(cut.exchanges, dict(counting.counts), drained=False))
            return
        left = list(order.categories)
        rounds = 0
        while left and not (order.once and counting.counts):
            for category in left:
                send(Began(category))
                log = Log(component.name, category)
                consumer = Consumer(
                    session,
                    component,
                    category,
                    Options(order.batch_size),
                    telemetry=counting,
                    log=log,
                    limited=False,
                )
                with UntilDrained(session, component.name, category) as stop:
                    consumer.run(stop)
                if order.once and counting.counts:
                    break
            # Otherwise it would depend on the machine how many attempts a run has.
            if rounds < _ROUNDS and connection.execute(_QUERIES["bring_forward"]).rowcount:
                rounds += 1
            left = [
                category
                for category in order.categories
                if not is_drained(connection, component.name, category)
            ]
        send(Done(cut.exchanges, dict(counting.counts), drained=not left))


def _exchange(order: Order) -> int | None:
    kill = order.kill
    return kill.number if kill is not None and kill.at == "exchange" else None


def _handle(
    component: Component, steps: tuple[HandledStep, ...], connection: Connection[Any], calls: Calls
) -> None:
    """Handle messages one by one, as one of two consumers that are in the same category."""
    for step in steps:
        name = f"{component.name}/2" if step.second else component.name
        values = {"consumer": name, "category": step.category, "ordinal": step.ordinal}
        rows = connection.execute(_QUERIES["claim"], values).fetchall()
        held = HeldPartition(0, *rows[0])
        positions = HeldPartitions(name, step.category, held=[held])
        batch = BatchRunner(ConsumerContext.of(connection, component, step.category))
        calls.pauses = step.pauses
        lost = False
        while True:
            try:
                next(batch.run(positions, 1, recheck=lost))
            except TO_BE_RETRIED:
                lost = True
            else:
                break
