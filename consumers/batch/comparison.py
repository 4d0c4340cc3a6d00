"""Comparing commands of one key by what they mean under the declaration of today.

The server compares types and data as they are stored. What differs there may still be the same: it
was sent under a former name, in a former shape, or without a field that has a default. So what the
server calls a conflict is decoded and compared here, upcast and with defaults, without the fields
that may differ.
"""

from collections.abc import Mapping

from consumers.calls.handler_call import guarded
from consumers.dead_letters.corrections import with_data
from consumers.runtime.context import ConsumerContext
from reservation.declaration.table import declarations
from reservation.effects.faults import is_interrupt
from reservation.idempotence.reserve import Pair, ReserveOutcome
from reservation.messages.comparison import same_meaning
from reservation.messages.message import StoredMessage


class Comparison:
    """Compares commands for one consumer of a component."""

    def __init__(self, context: ConsumerContext) -> None:
        self._context = context
        self._component = context.component

    def outcome(self, pair: Pair, corrected: Mapping[int, str]) -> ReserveOutcome:
        """Return whether a command is a duplicate of the first one of its key, or in conflict.

        A command that cannot be decoded is in conflict, and so is one whose first cannot be. If the
        first was corrected, a reissue of the original is a duplicate, and so is one of the
        correction.
        """
        declared = declarations(self._component).own[pair.command.type]
        firsts = [pair.first, *(with_data(pair.first, data) for data in pair.corrections)]
        command = pair.command
        if command.global_position in corrected:
            command = with_data(command, corrected[command.global_position])
        with guarded(self._context.connection, [command]):
            same = any(
                same_meaning(declared.names, declared.ignoring, command, first, self._decoded)
                for first in firsts
            )
        return ReserveOutcome.DUPLICATE if same else ReserveOutcome.CONFLICT

    def _decoded(self, message: StoredMessage) -> object | None:
        """Return the command in a message; None if it cannot be decoded."""
        try:
            return declarations(self._component).types.decode(message)
        except BaseException as error:  # a class can raise anything
            if is_interrupt(error):
                raise
            return None
