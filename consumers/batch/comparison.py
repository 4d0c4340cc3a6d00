"""Comparing commands of one key by what they mean under the declaration of today.

The server compares types and data as they are stored. What differs there may still be the same: it
was sent under a former name, in a former shape, or without a field that has a default. So what the
server calls a conflict is decoded and compared here, upcast and with defaults, without the fields
that may differ.
"""

from consumers.handling.handler_call import guarded, is_interrupt
from consumers.runtime.context import ConsumerContext
from reservation.idempotence.reserve import Outcome, Pair
from reservation.messages.comparison import same_meaning
from reservation.messages.message import StoredMessage


class Comparison:
    """How one consumer of a component compares commands."""

    def __init__(self, context: ConsumerContext) -> None:
        """Prepare.

        Args:
            context: the consumer.
        """
        self._context = context
        self._component = context.component

    def outcome(self, pair: Pair) -> Outcome:
        """Return whether a command is a duplicate of the first one of its key, or in conflict.

        A command that cannot be decoded is in conflict, and so is one whose first cannot be.

        Args:
            pair: both of them.
        """
        with guarded(self._context.connection, [pair.command]):
            same = same_meaning(self._component, pair.command, pair.first, self._decoded)
        return Outcome.DUPLICATE if same else Outcome.CONFLICT

    def _decoded(self, message: StoredMessage) -> object | None:
        """Return the command in a message; None if it cannot be decoded."""
        try:
            return self._component.types.decode(message)
        except BaseException as error:  # a class can raise anything
            if is_interrupt(error):
                raise
            return None
