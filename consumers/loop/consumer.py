"""The loop: batch after batch until it is time to stop, with waits at the end of the category.

A fault of the surroundings does not end a consumer: it waits, opens a new connection, reads its
positions again and goes on from there. It leaves alone what another process took over meanwhile.
"""

import math
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from psycopg import Connection

from consumers.batch.batch import Batch, BatchResult
from consumers.batch.batch_size import DEFAULT_BATCH_BYTES
from consumers.calls.error_reports import ErrorReports
from consumers.dead_letters.failure import Crashed, Failure, Reason
from consumers.dead_letters.letters import DeadLetters
from consumers.decisions.blocking import FailurePolicy
from consumers.group.membership import TURN, GroupShare, Membership
from consumers.loop.cleaning import Cleaning
from consumers.loop.narrowing import Narrowing
from consumers.loop.outcome_logging import crash_text, log_batch, log_retried
from consumers.loop.retrying.attempts import Attemptable, Attempts
from consumers.loop.retrying.due_letters import DueLetters
from consumers.loop.retrying.letter_retry import Retrying
from consumers.loop.retrying.repeating import RepeatingOnConflict
from consumers.loop.schedule import Schedule
from consumers.runtime.context import ConsumerContext
from consumers.runtime.event_loop import EventLoop
from consumers.runtime.losses import Losses
from consumers.runtime.observability.error_detail import ErrorDetail
from consumers.runtime.observability.logs import Log
from consumers.runtime.observability.spans import Spans
from consumers.runtime.observability.telemetry import Telemetry
from consumers.runtime.session import Session
from consumers.runtime.stopping import Stop
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.effects.faults import is_interrupt
from reservation.errors import (
    LockTimeoutError,
    MessageError,
    PositionLostError,
    ReservationError,
    SerializationError,
    StoreError,
)
from reservation.inspection.process_declaration import ProcessDeclaration
from reservation.maintenance.entity_order import check_order
from reservation.store.notifications import Notices

# Seconds until the second look at a category that has nothing new, where no notice is given. Each
# further wait is twice as long, up to a turn of the group.
POLL = 0.1

# Seconds between two looks for letters that are parked behind nothing: a process that was killed
# may have left some.
LOOK_FOR_STRANDED = 30.0

R = TypeVar("R")


class Consumer:
    """One of a component's consumers: of its commands, or of a reservation category."""

    def __init__(
        self,
        session: Session,
        component: Component,
        category: str,
        *,
        batch_size: int = 1000,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        share: GroupShare = GroupShare(),  # noqa: B008  it is frozen
        stop_on_error: bool = False,
        notices: Notices | None = None,
        telemetry: Telemetry | None = None,
        log: Log | None = None,
        grace: float | None = None,
        keep_text: bool = False,
        debug: bool = False,
    ) -> None:
        declared = declarations(component)
        self._session = session
        self._component = component
        self._category = category
        self._batch_size = batch_size
        self._batch_bytes = batch_bytes
        self._narrowing = Narrowing(batch_size)
        self._notices = notices
        self._telemetry = telemetry or Telemetry()
        self._noticed = False
        self._poll = POLL
        self._batch: Batch | None = None  # the one of the connection there is
        self._singly_letters = 0  # how many to handle one by one, after a process has died
        self._log = log or Log(component.name, category)
        self._cleaning = Cleaning(component, self._log)
        declaration = ProcessDeclaration.of(component)
        self._membership = Membership(
            session, component.name, category, share, self._log, declaration
        )
        self._schedule = Schedule(self._log, self._telemetry)
        self._membership.busy.besides = self._while_busy
        self._spans = Spans()
        self._losses = Losses()
        self._event_loop = EventLoop(self._telemetry.beat, grace)
        self._membership.busy.is_alive = lambda: self._event_loop.is_alive
        self._stop_on_error = stop_on_error
        self._dead_letters = DeadLetters(component.name, category)
        self._blocked: set[str] = set()
        self._known: object = None  # the claims that `_blocked` and `_due` are of
        self._due = DueLetters(self._dead_letters)
        self._looked = 0.0  # for stranded letters, by the monotonic clock
        self._repeat_on_conflict = RepeatingOnConflict(
            self._log, self._telemetry, lambda: self._membership.positions.lowest
        )
        self._reports = ErrorReports(
            component, category, self._log, debug=debug, heartbeat=self._telemetry.beat
        )
        self._detail = ErrorDetail(keep_text, self._reports.wants_exceptions)
        self._attempts = Attempts(declared.attempts, self._detail)
        self._retrying = Retrying(
            self._dead_letters,
            self._attempts,
            self._repeat_on_conflict,
            self._reports,
            batch_size,
            max(declared.of(category).concurrency.values(), default=1),
        )

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
                # Not left: the next to take the partitions sees that, and counts attempts.
                self._membership.abandon()
                if is_interrupt(error):
                    raise
                raise Crashed(crash_text(self._category, self._batch, error)) from error
            if self._narrowing.searches:
                # A batch failed, and who asked the process to stop may have been the handler
                # that failed. Only the next to take the partitions can count that.
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
        except StoreError:  # the others find out that it is gone
            self._membership.abandon()

    def _consume(self, connection: Connection[Any], stop: Stop) -> None:
        """Handle what follows the stored positions, as long as the connection lasts."""
        membership = self._membership
        self._wait_for_locks(membership.join, connection, stop)
        check_order(self._component, self._category, membership.size)
        # A new one for each connection: whether what it remembers was committed is not known.
        batch = Batch(
            ConsumerContext(
                connection,
                self._component,
                self._category,
                self._log,
                self._telemetry.beat,
                self._schedule.add,
                self._event_loop,
                self._detail,
                self._spans,
                self._losses,
            ),
            self._batch_bytes,
        )
        self._batch = batch
        self._known = None
        look, retry = True, False
        while not stop.requested:
            if not batch.has_begun:  # it is committed before anything else
                if membership.due or not look:
                    self._wait_for_locks(self._turn, connection, stop)
                    look = look or membership.behind
                    retry = membership.retry
                if self._schedule.is_due:
                    look |= self._schedule.write(connection)
                retry = (retry or self._due.now) and self._retry(batch, connection, stop)
            if look and self._handle_next(batch, connection, stop):
                continue
            if retry:
                continue
            self._session.works()
            self._cleaning.at_leisure(connection)
            is_ready = self._get_ready(batch)
            look = self._wait(stop)
            if is_ready and look and not self._is_due:
                batch.ask()
        if batch.has_begun:
            self._handle_next(batch, connection, stop)

    def _turn(self, connection: Connection[Any]) -> None:
        self._membership.turn(connection)
        self._telemetry.holds(self._membership.positions.reached, self._membership.head)
        membership = self._membership
        self._schedule.look(connection, membership.next_scheduled, membership.overdue)
        if self._membership.unclean:  # whoever held it may have died of one of its messages
            self._narrowing.died()
            self._singly_letters = self._batch_size
        positions = self._membership.positions
        if self._known != positions.claims:
            self._blocked = self._dead_letters.blocked(
                connection, positions.partitions, positions.size
            )
            self._due.look(connection, positions)
            self._known, self._looked = positions.claims, -math.inf
        if self._looked + LOOK_FOR_STRANDED <= time.monotonic():
            self._call_stranded(connection)
        waiting = 0
        if self._due.any:
            waiting = self._dead_letters.waiting(connection, positions.partitions, positions.size)
        self._telemetry.waits(waiting)

    def _call_stranded(self, connection: Connection[Any]) -> None:
        """Have letters handled that are parked behind nothing."""
        if not self._membership.positions.partitions:
            return
        stranded = self._dead_letters.stranded(connection)
        if stranded:
            self._dead_letters.look_again(connection, stranded)
            self._membership.retry = True
        self._looked = time.monotonic()

    def _wait_for_locks(
        self, call: Callable[[Connection[Any]], None], connection: Connection[Any], stop: Stop
    ) -> None:
        """Repeat a call until it gets its locks, or it is time to stop."""
        while not stop.requested:
            self._telemetry.beat()
            try:
                call(connection)
            except (LockTimeoutError, SerializationError):
                self._log.info("lock_awaited")
            else:
                return

    def _get_ready(self, batch: Batch) -> bool:
        """Prepare what is asked as soon as there is notice; return whether anything may be."""
        narrowing = self._narrowing
        if narrowing.searches or narrowing.singly or self._stop_on_error:
            return False
        policy = FailurePolicy(self._blocked, in_part=True)
        batch.get_ready(self._membership.positions, narrowing.limit, policy)
        return True

    def _wait(self, stop: Stop) -> bool:
        """Wait where the category ends: until notice is given, or for a while.

        Returns whether there may be new messages.
        """
        poll = self._poll
        self._poll = min(poll * 2, TURN)
        notices = self._notices
        due = self._due.seconds
        if notices is None or not self._membership.positions.partitions:
            stop.wait(min(self._schedule.limit(poll), due))
            return False
        longest, poll = self._schedule.limit(TURN), self._schedule.limit(poll)
        noticed = notices.wait(min(longest, due), poll=min(poll, due), pause=stop)
        if notices.scheduled:
            notices.scheduled = False
            self._schedule.add(0)  # the look says when it is due
        if self._noticed != (notices.missing is None):
            self._noticed = notices.missing is None
            if self._noticed:
                self._log.info("notice_awaited")
            else:
                self._log.info("notice_missing", reason=notices.missing)
        return noticed

    def _handle_next(self, batch: Batch, connection: Connection[Any], stop: Stop) -> bool:
        """Run one batch; if it fails, the next ones are smaller until its message is found.

        Returns whether there may be more to do.
        """
        narrowing = self._narrowing
        try:
            with self._membership.busy:
                if narrowing.singly:
                    result = self._handle_first(batch, connection, stop)
                else:
                    result = self._run_batch(batch, stop, narrowing.limit)
        except MessageError as error:
            if narrowing.singly:
                self._reports.stopped(batch.at_hand, error)
                raise
            self._log_failed(error)
            narrowing.failed(len(batch.at_hand), batch.before(error))
            return True
        except PositionLostError as error:
            return self._reread_positions(error, connection, stop)
        except StoreError:
            narrowing.interrupted()
            raise
        if result is None:
            return False
        if not result.moved:
            narrowing.ended()
            return False
        if result.failed is not None:
            self._log_failed(result.failed)
        narrowing.committed(
            result.read,
            ends_before_failed=result.failed is not None,
            found=any(one.failure.reason is Reason.PROCESS_DIED for one in result.letters),
        )
        self._poll = POLL
        self._session.works()
        # Of what comes after the end of the category there is notice, where it is asked for.
        noticed = self._notices is not None and self._notices.found()
        return not (noticed and result.ended)

    def _while_busy(self, connection: Connection[Any]) -> None:
        """Do what a batch that takes long must not put off; not in the consumer's own thread."""
        if self._notices is not None:
            self._notices.leave()
        self._schedule.write(connection)

    def _log_failed(self, error: MessageError) -> None:
        position = self._membership.positions.lowest
        self._log.warning("batch_failed", position=position, error=str(error))

    def _handle_first(
        self, batch: Batch, connection: Connection[Any], stop: Stop
    ) -> BatchResult | None:
        """Handle the next message by itself, as often as it is to be tried."""
        positions = self._membership.positions
        message = batch.first(positions)
        if message is None or self._stop_on_error:
            return self._run_batch(batch, stop, 1)

        def count() -> int | None:
            return self._repeat_on_conflict(lambda _: positions.attempt(connection, message), stop)

        def take_back() -> None:
            positions.take_back(connection, message)

        def attempt() -> BatchResult | None:
            return self._run_batch(batch, stop, 1)

        def give_up(failure: Failure, attempts: int) -> BatchResult | None:
            return self._run_batch(batch, stop, 1, {message.global_position: (failure, attempts)})

        failed = self._reports.retried(message)
        attemptable = Attemptable(
            message.global_position, str(message), count, take_back, attempt, give_up, failed=failed
        )
        return self._attempts.run(attemptable, stop)

    def _run_batch(
        self,
        batch: Batch,
        stop: Stop,
        limit: int,
        given_up: Mapping[int, tuple[Failure, int]] = MappingProxyType({}),
    ) -> BatchResult | None:
        """Run one batch until it is committed; None if it is time to stop."""
        policy = FailurePolicy(self._blocked, given_up, self._stop_on_error, in_part=True)
        began = 0.0

        def run(careful: bool) -> BatchResult:
            nonlocal began
            began = time.monotonic()
            return batch.run(
                self._membership.positions,
                limit,
                careful=careful,
                policy=policy,
                looks_ahead=self._may_look_ahead(stop),
            )

        result = self._repeat_on_conflict(run, stop)
        if result is not None:
            self._blocked.update(result.blocked)
            self._due.add(result.letters)
            log_batch(self._log, result, self._membership.positions.partitions)
            self._reports.decided(result.tried, result.letters)
            positions = self._membership.positions
            if result.read:
                self._telemetry.holds(positions.reached, self._membership.head)
                self._telemetry.committed(result.counts, time.monotonic() - began)
            if result.blocked and positions.are_shared:
                self._retrying.look_again(self._session.connection, result.blocked, stop)
        return result

    def _may_look_ahead(self, stop: Stop) -> bool:
        """Return whether another batch is what comes next, as far as that is known."""
        waits = self._narrowing.searches or self._stop_on_error
        return not (stop.requested or self._is_due or waits)

    @property
    def _is_due(self) -> bool:
        """Whether there is something to do before the next batch."""
        return self._membership.due or self._schedule.is_due or self._due.now

    def _retry(self, batch: Batch, connection: Connection[Any], stop: Stop) -> bool:
        """Handle dead letters again, if that was asked for; return whether there may be more."""
        try:
            with self._membership.busy:
                retried = self._retrying.run(
                    connection,
                    batch.retry_transaction,
                    self._membership.positions,
                    stop,
                    singly=self._narrowing.searches or self._singly_letters > 0,
                )
                self._reports.decided(retried.tried, retried.letters)
        except PositionLostError as error:
            return self._reread_positions(error, connection, stop)
        self._blocked -= retried.freed
        tried = retried.tries
        self._singly_letters = max(self._singly_letters - tried, 0) if retried.more else 0
        if self._due.now or retried.waiting:
            self._due.look(connection, self._membership.positions, in_vain=not tried)
        log_retried(self._log, retried)
        return retried.more

    def _reread_positions(
        self, error: PositionLostError, connection: Connection[Any], stop: Stop
    ) -> bool:
        """Read what is still held, and return that it is to be tried again."""
        self._log.warning("partitions_lost", error=str(error))
        self._wait_for_locks(self._turn, connection, stop)
        return True
