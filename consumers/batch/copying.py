"""Copying commands to the streams of their keys, and the outcomes of those that have a copy.

Outcomes are known only after the copying: what the server calls a conflict is compared by what it
means, and a command that is in conflict then is set aside.
"""

from collections.abc import Sequence

from consumers.batch.comparison import Comparison
from consumers.effects.effects import Effects
from consumers.runtime.context import ConsumerContext
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.idempotence.reserve import (
    Pair,
    ReserveOutcome,
    compare_initiations,
    first_initiated,
    first_reserved,
    reserve,
)
from reservation.messages.message import StoredMessage
from reservation.postgres.exchange.exchange import exchange
from reservation.postgres.exchange.request import Request


class Copying:
    """Reserves commands for one consumer, and compares those that initiate again."""

    def __init__(self, context: ConsumerContext) -> None:
        self._context = context
        self._table = declarations(context.component)
        self._comparison = Comparison(context)

    def run(self, effects: Effects, before: Sequence[Request]) -> None:
        """Send the requests before, and note the outcomes of the commands."""
        context = self._context
        if effects.reservations:
            commands = [command for command, _ in effects.reservations]
            with context.spans.reserving(
                context.connection, context.component.name, commands, effects.counts
            ):
                self._reserve(effects, before)
        else:
            exchange(context.connection, before)
        if effects.reissued:
            self._compare_initiations(effects)

    def _reserve(self, effects: Effects, before: Sequence[Request]) -> None:
        connection, copies = self._context.connection, _as_parameters(effects.reservations)
        former = _former(effects)
        outcomes = reserve(
            connection,
            copies,
            self._table.ignoring(Role.RESERVE),
            former,
            _corrected(effects, effects.reservations),
            before,
        )
        conflicts = _conflicts(outcomes)
        former_streams = None if former is None else [former[n] for n in conflicts]
        pairs = first_reserved(connection, [copies[n] for n in conflicts], former_streams)
        commands = list(effects.reservations)
        for pair in pairs:
            n = conflicts[pair.ordinal]
            commands[n] = commands[n][0], pair.first.stream_name
        self._note(effects, commands, outcomes, conflicts, pairs)

    def _compare_initiations(self, effects: Effects) -> None:
        connection, copies = self._context.connection, _as_parameters(effects.reissued)
        outcomes = compare_initiations(
            connection,
            copies,
            self._table.ignoring(Role.INITIATE),
            _corrected(effects, effects.reissued),
        )
        conflicts = _conflicts(outcomes)
        pairs = first_initiated(connection, [copies[n] for n in conflicts])
        self._note(effects, effects.reissued, outcomes, conflicts, pairs)

    def _note(
        self,
        effects: Effects,
        commands: Sequence[tuple[StoredMessage, str]],
        outcomes: Sequence[ReserveOutcome],
        conflicts: Sequence[int],
        pairs: Sequence[Pair],
    ) -> None:
        """Note the outcome of each command; what the server calls conflicts is compared first."""
        compared = {conflicts[pair.ordinal]: pair for pair in pairs}
        for n, (command, name) in enumerate(commands):
            outcome, pair = outcomes[n], compared.get(n)
            if pair is not None:
                outcome = self._comparison.outcome(pair, effects.corrected)
            effects.add_outcome(command, name, outcome)


def _as_parameters(commands: Sequence[tuple[StoredMessage, str]]) -> list[tuple[int, str]]:
    """Return commands as the server takes them."""
    return [(command.global_position, name) for command, name in commands]


def _conflicts(outcomes: Sequence[ReserveOutcome]) -> list[int]:
    """Return which of the commands are in conflict for the server, by their ordinals."""
    return [n for n, outcome in enumerate(outcomes) if outcome is ReserveOutcome.CONFLICT]


def _former(effects: Effects) -> list[str | None] | None:
    """Return the former stream of each command to be reserved; None if there is none."""
    if not effects.former_streams:
        return None
    return [
        effects.former_streams.get(command.global_position) for command, _ in effects.reservations
    ]


def _corrected(
    effects: Effects, commands: Sequence[tuple[StoredMessage, str]]
) -> list[str | None] | None:
    """Return the data to which each command has been corrected; None if none has been."""
    if not effects.corrected:
        return None
    return [effects.corrected.get(command.global_position) for command, _ in commands]
