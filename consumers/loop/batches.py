"""Running the next transaction of a consumer: a batch, or letters that are due."""

import time
from typing import Any

from psycopg import Connection

from consumers.batch.batch_handling import BatchResult
from consumers.batch.batch_runner import BatchRunner
from consumers.effects.blocking import FailurePolicy
from consumers.failures.failure import process_died, states_of
from consumers.loop.context import LoopContext
from consumers.loop.outcome_logging import log_batch, log_retried
from consumers.loop.waiting import Waiting
from consumers.runtime.stopping import Stop
from reservation.errors import MessageError, StoreError


class Batches:
    """The batches of one consumer; after one fails, the next ones are smaller."""

    def __init__(self, context: LoopContext, waiting: Waiting) -> None:
        self._context = context
        self._waiting = waiting

    # Any: rows of different types.
    def next(self, runner: BatchRunner, connection: Connection[Any], stop: Stop) -> bool:
        """Run one batch; return whether there may be more to do."""
        context, bisection = self._context, self._context.bisection
        membership, notices = context.membership, context.notices
        try:
            with membership.busy, context.deaths.permit(bisection.one_at_a_time, stop) as may_run:
                if not may_run:
                    return True
                if bisection.one_at_a_time:
                    result = self._run_single(runner, connection, stop)
                else:
                    result = self._run(runner, stop, bisection.limit)
        except MessageError as error:
            self._failed(runner, error)
            return True
        except StoreError:
            bisection.interrupted(len(runner.uncommitted))
            raise
        if result is None:
            return False
        if result.waits:
            return True
        if not result.moved:
            bisection.ended()
            return False
        self._waiting.moved()
        context.session.works()
        # Nothing to do at the end of the category, if there is notice of what comes after it.
        has_notices = notices is not None and notices.found()
        return not (has_notices and result.ended)

    def _failed(self, runner: BatchRunner, error: MessageError) -> None:
        """Make the next batch smaller, or raise the error if the consumer stops on errors."""
        context, bisection = self._context, self._context.bisection
        context.log.warning(
            "batch_failed", position=context.membership.positions.lowest, error=str(error)
        )
        if not context.options.stop_on_error:
            bisection.failed(runner.uncommitted, error)
            return
        earlier = 0 if len(runner.uncommitted) == 1 else runner.before(error)
        if earlier == 0:
            context.reports.stopped(runner.uncommitted, error)
            raise error
        if earlier is None:
            bisection.failed(runner.uncommitted, error)
        else:
            bisection.up_to(earlier)

    def _run_single(
        self, runner: BatchRunner, connection: Connection[Any], stop: Stop
    ) -> BatchResult | None:
        """Handle the next message by itself; the attempt is counted before it begins."""
        context, bisection = self._context, self._context.bisection
        positions = context.membership.positions
        message = runner.first(positions)
        if message is None or context.options.stop_on_error:
            return self._run(runner, stop, 1)

        def attempt(number: int) -> BatchResult | None:
            if number > context.retries.most(message.type):
                failure = process_died(str(message), number - 1)
                bisection.failures[message.global_position] = failure
            try:
                return self._run(runner, stop, 1)
            except MessageError as error:
                bisection.failed([message], error, number - 1)
                return self._run(runner, stop, 1)

        return context.attempts.run(
            message.global_position,
            lambda: context.repeat_on_conflict(
                lambda _: positions.attempt(connection, message), stop
            ),
            lambda: positions.uncount_attempt(connection, message),
            attempt,
        )

    def _run(self, runner: BatchRunner, stop: Stop, limit: int) -> BatchResult | None:
        """Run one batch until it is committed; None if it is time to stop."""
        context, bisection = self._context, self._context.bisection
        stops_on_error = context.options.stop_on_error
        context.running.patient = bisection.one_at_a_time or stops_on_error
        policy = FailurePolicy(context.blocked, bisection.failures, stops_on_error)

        def may_continue() -> bool:
            return not (
                stop.requested
                or bisection.in_progress
                or context.membership.due
                or context.schedule.is_due
                or context.pauses.stops_consumer
                or context.due.now
            )

        def run(recheck: bool) -> BatchResult | None:
            result = None
            began = time.monotonic()
            positions = context.membership.positions
            for result in runner.run(
                positions, limit, recheck=recheck, policy=policy, may_continue=may_continue
            ):
                self._note(result, time.monotonic() - began)
                began = time.monotonic()
            return result

        return context.repeat_on_conflict(run, stop)

    def _note(self, result: BatchResult, seconds: float) -> None:
        """Note what a transaction has committed."""
        context, telemetry = self._context, self._context.telemetry
        positions = context.membership.positions
        context.blocked.update(result.blocked)
        log_batch(context.log, result, positions.partitions)
        context.reports.decided(result.letters)
        if result.read:
            telemetry.holds(positions.reached, context.membership.head)
            telemetry.committed(result.counts, seconds, states_of(result.letters))
        context.due.wrote(result.letters)
        if result.blocked and positions.are_shared:
            context.due.soon()
        if result.moved:
            context.bisection.committed(result.read, result.letters)
            context.in_flight.until = context.bisection.reached(positions.lowest)

    # Any: rows of different types.
    def retry(self, runner: BatchRunner, connection: Connection[Any], stop: Stop) -> bool:
        """Handle letters that are due; return whether there may be more.

        Of a consumer that is paused they are those whose async calls have ended.
        """
        context, retrying = self._context, self._context.retrying
        membership = context.membership
        with membership.busy, context.deaths.permit(retrying.one_at_a_time, stop) as may_run:
            if not may_run:
                return True
            context.running.patient = retrying.one_at_a_time
            arguments = connection, runner.retry_transaction, membership.positions, stop
            paused = context.pauses.stops_consumer
            retried = retrying.run(*arguments, only_ended=paused)
            if retried.has_failed:  # even if its handler has asked the process to stop
                retried = retrying.run(*arguments, only_ended=paused)
            if not retried.has_failed:
                context.in_flight.committed()
        if (result := retried.result) is not None:
            context.reports.decided(result.letters)
            context.blocked.difference_update(result.freed)
            log_retried(context.log, result, retried.of_calls)
            set_aside, of_calls = states_of(result.letters), retried.of_calls
            context.telemetry.retried(result.positions, result.counts, set_aside, of_calls)
        return retried.more
