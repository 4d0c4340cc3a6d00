"""Rebalancing: the partitions that a consumer holds may change, and so may its work."""

from typing import Any

from psycopg import Connection

from consumers.failures.letters import DeadLetters
from consumers.loop.context import LoopContext
from consumers.loop.ongoing_calls import OngoingCalls
from consumers.loop.retrying.due_letters import WaitingCount


class Rebalancing:
    """Rebalances the partitions of one consumer."""

    def __init__(
        self, context: LoopContext, calls: OngoingCalls, dead_letters: DeadLetters
    ) -> None:
        self._context = context
        self._calls = calls
        self._dead_letters = dead_letters
        self._waiting_count = WaitingCount()
        self._claims: frozenset[tuple[int, int]] | None = None  # those that `blocked` is of

    def begin(self) -> None:
        """Forget what another connection has read."""
        self._calls.forget()
        self._claims = None

    # Any: rows of different types.
    def rebalance(self, connection: Connection[Any]) -> None:
        """Rebalance the group, and note what is held now."""
        context, membership = self._context, self._context.membership
        # A suspect stays here until it is found: no other process knows of it.
        membership.rebalance(
            connection, may_release=not context.isolates_suspect and self._calls.may_release
        )
        context.pauses.note(membership.pauses, membership.asked_at)
        positions = membership.positions
        context.telemetry.holds(positions.reached, membership.head)
        if membership.abandoned:  # their holder may have died of one of their messages
            context.deaths.take_over(membership.abandoned, positions.lowest, membership.head)
        context.in_flight.until = context.bisection.reached(positions.lowest)
        partitions, size = positions.partitions, positions.size
        if self._claims != positions.claims:
            self._calls.forget_lost(connection, positions, self._claims or frozenset())
            context.blocked.clear()
            context.blocked.update(self._dead_letters.blocked(connection, partitions, size))
            self._claims = positions.claims
            context.due.soon()
            context.in_flight.holds(partitions)
        waiting = 0
        if membership.has_letters:
            context.due.at_rebalance()
            waiting = self._waiting_count.at_rebalance(
                lambda: self._dead_letters.waiting(connection, partitions, size)
            )
        context.telemetry.waits(waiting)
        context.schedule.look(connection, membership.next_scheduled, membership.overdue)
