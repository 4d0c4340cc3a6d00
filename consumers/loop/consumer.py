"""The loop: batch after batch until it is time to stop, with waits at the end of the category.

An environment error does not end a consumer. It waits, opens a new connection, and goes on from its
stored positions, without the partitions that another process has taken over meanwhile.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from psycopg import Connection

from consumers.archived import ArchivedMessages
from consumers.batch.batch_runner import BatchRunner
from consumers.calls.error_reports import ErrorReports
from consumers.failures.failure import Crashed
from consumers.failures.letters import DeadLetters
from consumers.failures.retries import Retries
from consumers.group.heartbeat import Heartbeat
from consumers.group.membership import REBALANCE_INTERVAL, Membership, new_worker
from consumers.limits.breakers import declare_breakers
from consumers.limits.limits import Limits
from consumers.loop.batches import Batches
from consumers.loop.cleaning import Cleaning
from consumers.loop.context import LoopContext
from consumers.loop.ongoing_calls import OngoingCalls
from consumers.loop.outcome_logging import crash_text
from consumers.loop.rebalancing import Rebalancing
from consumers.loop.recurring import RecurringCommands
from consumers.loop.retrying.attempts import CountedAttempts
from consumers.loop.retrying.bisection import Bisection
from consumers.loop.retrying.deaths import Deaths
from consumers.loop.retrying.due_letters import DueLetters
from consumers.loop.retrying.letter_retry import Retrying
from consumers.loop.retrying.repeating import RepeatingOnConflict
from consumers.loop.retrying.suspects import Suspects
from consumers.loop.schedule import Schedule
from consumers.loop.waiting import Waiting
from consumers.options import Options
from consumers.pauses.current import Pauses
from consumers.runtime.context import ConsumerContext
from consumers.runtime.event_loop import EventLoop
from consumers.runtime.handler_connections import HandlerConnections
from consumers.runtime.in_flight import InFlight
from consumers.runtime.losses import Losses
from consumers.runtime.observability.error_detail import ErrorDetail
from consumers.runtime.observability.logs import Log
from consumers.runtime.observability.spans import Spans
from consumers.runtime.observability.telemetry import Telemetry
from consumers.runtime.running_calls import RunningCalls
from consumers.runtime.session import Session
from consumers.runtime.stopping import Stop
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.effects.faults import is_interrupt
from reservation.errors import (
    LockTimeoutError,
    PositionLostError,
    ReservationError,
    SerializationError,
    StoreError,
)
from reservation.inspection.process_declaration import ProcessDeclaration
from reservation.maintenance.entity_order import check_order
from reservation.read_models.schemas import enter
from reservation.store.notifications import Notices


class Consumer:
    """One of a component's consumers: of its commands, or of a reservation category."""

    def __init__(
        self,
        session: Session,
        component: Component,
        category: str,
        options: Options = Options(),  # noqa: B008  it is frozen
        *,
        notices: Notices | None = None,
        telemetry: Telemetry | None = None,
        log: Log | None = None,
        in_flight: InFlight | None = None,
        heartbeat: Heartbeat | None = None,
        suspects: Suspects | None = None,
        worker: str | None = None,
        limited: bool = True,
        archived: ArchivedMessages | None = None,
    ) -> None:
        self._component, self._category, self._options = component, category, options
        self._session, self._notices, self._archived = session, notices, archived
        self._runner: BatchRunner | None = None  # of the current connection
        self._log = log or Log(component.name, category)
        self._in_flight, self._telemetry = in_flight or InFlight(), telemetry or Telemetry()
        self._cleaning = Cleaning(component, self._log)
        self._membership = Membership(
            session,
            component.name,
            category,
            options.partitions,
            worker or new_worker(),
            self._log,
            ProcessDeclaration.of(component),
            heartbeat,
            declarations(component).model,
            has_archive=archived is not None,
        )
        self._schedule = Schedule(self._log, self._telemetry)
        self._recurring = RecurringCommands(component, category, self._log, self._beat)
        self._pauses = Pauses(component, category, self._log.warning)
        lease = self._membership.busy
        lease.besides = self._while_busy
        lease.look, lease.wants_look = self._pauses.read, lambda: self._pauses.is_due
        self._spans, self._losses = Spans(), Losses()
        self._event_loop = EventLoop(self._beat, options.grace)
        lease.is_alive = lambda: self._event_loop.is_alive
        self._running = RunningCalls(self._event_loop)
        self._connections = HandlerConnections(
            session.address, f"reservation {component.name} handlers", self._event_loop
        )
        self._limits = (
            Limits.of(component, category, session.address, self._log) if limited else None
        )
        dead_letters = DeadLetters(component.name, category)
        self._due = DueLetters(0.0 if self._limits is None else self._limits.pace)
        repeat_on_conflict = RepeatingOnConflict(
            self._log, self._telemetry, lambda: self._membership.positions.lowest
        )
        reports = ErrorReports(
            component, category, self._log, debug=options.debug, heartbeat=self._beat
        )
        self._detail = ErrorDetail(options.keep_text, reports.wants_exceptions)
        retries = Retries(component, category, self._detail)
        self._bisection = Bisection(options.batch_size, retries)
        attempts = CountedAttempts(self._in_flight.counts)
        self._retrying = Retrying(
            dead_letters,
            self._due,
            retries,
            repeat_on_conflict,
            attempts,
            self._running,
            options.batch_size,
            max(declarations(component).of(category).concurrency.values(), default=1),
            1 if self._limits is None else self._limits.most_at_once + 1,
        )
        suspects = suspects or Suspects()
        self._calls = OngoingCalls(
            self._running, self._in_flight, suspects, lease, dead_letters, self._beat
        )
        deaths = Deaths(
            self._in_flight, suspects, self._bisection, self._retrying, attempts, self._beat
        )
        self._waiting = Waiting(
            self._log,
            notices,
            self._membership,
            self._schedule,
            self._recurring,
            self._due,
            self._calls,
            self._pauses,
        )
        self._context = LoopContext(
            session,
            options,
            self._log,
            self._telemetry,
            notices,
            self._in_flight,
            self._membership,
            self._schedule,
            self._pauses,
            self._running,
            self._due,
            retries,
            attempts,
            self._bisection,
            repeat_on_conflict,
            reports,
            deaths,
            self._retrying,
        )
        self._rebalancing = Rebalancing(self._context, self._calls, dead_letters)
        self._batches = Batches(self._context, self._waiting)

    def run(self, stop: Stop) -> None:
        """Handle every message, in order, until it is time to stop."""
        check_order(self._component, self._category, self._membership.wanted)
        with self._event_loop.used(stop):
            try:
                self._run_until_stopped(stop)
            except ReservationError:
                self._leave()
                raise
            except BaseException as error:
                # Not left: whoever takes the partitions next sees that, and counts attempts.
                self._membership.abandon()
                if is_interrupt(error):
                    raise
                raise Crashed(crash_text(self._category, self._runner, error)) from error
            finally:
                if self._limits is not None:
                    self._limits.close()
            if self._bisection.in_progress or self._retrying.in_progress:
                # A batch failed, and its handler may have asked the process to stop. Only the
                # next holder of the partitions can count that.
                self._membership.abandon()
            else:
                self._leave()
        self._log.info("consumer_stopped", position=self._membership.positions.lowest)

    def _run_until_stopped(self, stop: Stop) -> None:
        while not stop.requested:
            try:
                self._consume(self._session.connection, stop)
            except StoreError as error:
                if not self._session.recover(error, stop):
                    break
                self._losses.recovered(error, was_refused=self._session.was_refused)
                if self._notices is not None:
                    self._notices.renew(self._session.connection)

    def _leave(self) -> None:
        try:
            self._membership.leave(self._session.connection)
        except StoreError:  # the others see that its session has ended
            self._membership.abandon()

    def _consume(self, connection: Connection[Any], stop: Stop) -> None:
        """Handle what follows the stored positions, on one connection."""
        membership = self._membership
        if (model := declarations(self._component).model) is not None:
            enter(connection, model.schema)
        self._wait_for_locks(membership.join, connection, stop)
        check_order(self._component, self._category, membership.size)
        declares = partial(declare_breakers, component=self._component, category=self._category)
        self._wait_for_locks(declares, connection, stop)
        self._recurring.connected()
        # A new one for each connection: what it remembers may not have been committed.
        runner = self._runner = BatchRunner(
            ConsumerContext(
                connection,
                self._component,
                self._category,
                self._log,
                self._beat,
                self._schedule.add,
                self._running,
                self._connections.connection,
                self._detail,
                self._spans,
                self._losses,
                options=self._options,
                in_flight=self._in_flight,
                pauses=self._pauses,
                archived=self._archived,
            ),
            self._limits,
        )
        self._rebalancing.begin()
        new_messages, due_letters = True, False  # whether there may be any
        while not stop.requested:
            self._calls.run(connection, stop, 0.0)
            must_pause, call_ended = self._running.must_pause, bool(self._running.due())
            paused = self._pauses.stops_consumer
            if membership.due or not (new_messages or call_ended or paused):
                self._wait_for_locks(self._rebalancing.rebalance, connection, stop)
                new_messages = new_messages or membership.behind
            self._look_for_pauses(connection, stop)
            paused = self._pauses.stops_consumer
            if self._recurring.is_due:
                with membership.busy:
                    sent = self._recurring.run(connection)
                if sent:
                    self._schedule.add(0)
            if self._schedule.is_due:
                new_messages |= self._schedule.write(connection)
            if self._context.isolates_suspect and self._running:
                self._wait(connection, stop)  # a suspect is handled when no call goes on
                continue
            if call_ended:
                self._due.soon()
            if not paused or self._running.ended_letters():
                due_letters = (due_letters or self._due.now) and self._try(
                    self._batches.retry, runner, connection, stop
                )
            may_read = new_messages and not (must_pause or paused)
            if may_read and self._try(self._batches.next, runner, connection, stop):
                continue
            if not paused and (due_letters or self._running.due()):
                continue
            self._session.works()
            self._cleaning.when_idle(connection)
            new_messages = self._wait(connection, stop) or ((must_pause or paused) and new_messages)
        self._finish(runner, connection, stop)

    def _finish(self, runner: BatchRunner, connection: Connection[Any], stop: Stop) -> None:
        """Let async calls end within the grace, and commit their effects."""
        running, loop = self._running, self._event_loop
        running.closed = True
        while running.letters and not (self._context.isolates_suspect or loop.cancelling):
            paused = self._pauses.stops_consumer
            if running.ended_letters() if paused else running.due():
                self._due.soon()
                self._try(self._batches.retry, runner, connection, stop)
            else:
                self._calls.run(connection, stop, REBALANCE_INTERVAL)
        if loop.cancelling:
            self._log.warning("calls_cancelled")

    def _beat(self) -> None:
        self._telemetry.beat()
        self._in_flight.beats()

    def _wait_for_locks(
        self, call: Callable[[Connection[Any]], None], connection: Connection[Any], stop: Stop
    ) -> None:
        """Repeat a call until it gets its locks, or it is time to stop."""
        while not stop.requested:
            self._beat()
            try:
                call(connection)
            except (LockTimeoutError, SerializationError):
                self._log.info("lock_awaited")
            else:
                return

    # Any: rows of different types.
    def _try(
        self,
        work: Callable[[BatchRunner, Connection[Any], Stop], bool],
        runner: BatchRunner,
        connection: Connection[Any],
        stop: Stop,
    ) -> bool:
        """Run a transaction; return whether there may be more to do."""
        try:
            return work(runner, connection, stop)
        except PositionLostError as error:  # other partitions may still be held
            self._log.warning("partitions_lost", error=str(error))
            self._bisection.failures.clear()
            self._wait_for_locks(self._rebalancing.rebalance, connection, stop)
            return True

    def _wait(self, connection: Connection[Any], stop: Stop) -> bool:
        """Wait where the category ends; return whether there may be new messages."""
        return self._waiting.wait(connection, stop)

    def _look_for_pauses(self, connection: Connection[Any], stop: Stop) -> None:
        """Read what is paused, if it is time or there was notice, and release what no longer is."""
        notices = self._notices
        if self._pauses.is_due or (notices is not None and notices.pauses):
            if notices is not None:
                notices.pauses = False
            self._pauses.read(connection)
        if self._pauses.is_released:
            self._wait_for_locks(self._pauses.release, connection, stop)
            self._due.soon()

    def _while_busy(self, connection: Connection[Any]) -> None:
        """Do what a long batch must not delay; called by the heartbeat's thread."""
        if self._notices is not None:
            self._notices.leave()
        self._schedule.write(connection)
