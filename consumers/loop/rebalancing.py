"""Rebalancing: what a consumer holds of its group may change, and so what it has to do."""

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
        self._waiting = WaitingCount()
        self._known: frozenset[tuple[int, int]] | None = None  # the claims that `blocked` is of

    def begin(self) -> None:
        """Forget what was known on another connection."""
        self._calls.forget()
        self._known = None

    # Any: rows of different types.
    def rebalance(self, connection: Connection[Any]) -> None:
        """Take part in the group, and look at what is held now."""
        context, membership = self._context, self._context.membership
        # What may have ended a process stays here until it is found: nobody else knows of it.
        membership.rebalance(
            connection, may_release=not context.isolates_suspect and self._calls.may_move
        )
        positions = membership.positions
        context.telemetry.holds(positions.reached, membership.head)
        if membership.abandoned:  # whoever held it may have died of one of its messages
            context.deaths.take_over(membership.abandoned, positions.lowest, membership.head)
        context.in_flight.until = context.bisection.reached(positions.lowest)
        partitions, size = positions.partitions, positions.size
        if self._known != positions.claims:
            self._calls.forget_lost(connection, positions, self._known or frozenset())
            context.blocked.clear()
            context.blocked.update(self._dead_letters.blocked(connection, partitions, size))
            self._known = positions.claims
            context.due.soon()
            context.in_flight.holds(partitions)
        waiting = 0
        if membership.letters:
            context.due.at_rebalance()
            waiting = self._waiting.at_rebalance(
                lambda: self._dead_letters.waiting(connection, partitions, size)
            )
        context.telemetry.waits(waiting)
        context.schedule.look(connection, membership.next_scheduled, membership.overdue)
