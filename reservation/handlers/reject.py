"""Rejecting a command: a handler raises `Reject`, and the rejection is the only effect.

A rejection is a decision and no failure. It is stored as an event of the entity
(`reservation.messages.pseudo_event.Rejection`), so it is as durable as any other effect, a reissue
is a duplicate, and the sender can ask for the reason.
"""

from reservation.messages.pseudo_event import Rejection


class Reject(Exception):
    """Raised by a handler to reject its command: ``raise Reject("insufficient funds")``.

    Nothing else that the handler was about to write is written, neither events nor further
    messages. What it has executed on ``context.connection`` stays, unless that was in a
    ``with context.connection.transaction():`` that the exception leaves.

    Attributes:
        reason: why, for the sender: it is stored, and is in the outcome that the sender asks for.
    """

    def __init__(self, reason: str) -> None:
        """Reject the command.

        Args:
            reason: why, in words that the sender may read.

        Raises:
            TypeError: the reason is not a text.
            ValueError: it is empty.
        """
        if not isinstance(reason, str):
            raise TypeError(
                f"Reject takes the reason as a str, not a {type(reason).__name__}; write "
                f"raise Reject('insufficient funds')"
            )
        if not reason.strip():
            raise ValueError("Reject takes a reason, and the given one is empty; say why")
        super().__init__(reason)
        self.reason = reason

    def event(self, command_type: str, *, starts: bool) -> Rejection:
        """Return the event that is stored.

        Args:
            command_type: the type of the command, as it is stored.
            starts: whether the command was to start its entity's stream.
        """
        return Rejection(command_type, self.reason, starts)
