"""Exceptions of a component's code that are faults of its messages, and their error texts."""

import signal
import uuid

from reservation.errors import HandlerError, MessageError
from reservation.messages.message import StoredMessage, printable
from reservation.raised import describe


class RaisedByHandlerError(HandlerError):
    """A handler raised: neither a rejection nor an error of ours; that is the cause.

    Attributes:
        message: the message that it was called for.
    """

    def __init__(self, text: str, message: StoredMessage) -> None:
        super().__init__(text)
        self.message = message


class TakenIdError(MessageError):
    """An id that the handling of a message derives is in use for another message."""

    def __init__(self, message: StoredMessage, taken: uuid.UUID, stream_name: str) -> None:
        super().__init__(
            f"Cannot write the effects of {message}: the message id {taken} is in use for another "
            f"message in {printable(stream_name)}; have the command sent again under another id, "
            f"and discard this one"
        )
        self.global_position = message.global_position


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is Python's own answer to SIGINT.

    `Stop` takes that signal over, so in a consumer's process KeyboardInterrupt is one that a
    handler raised.
    """
    return (
        isinstance(error, KeyboardInterrupt)
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def handler_raised(message: StoredMessage, error: BaseException) -> str:
    """Return the error of a handler that raised."""
    return f"The handler of {message} raised {describe(error)}"


def conflict(message: StoredMessage, key_stream: str) -> str:
    """Return the error of a command with the key of one of different content."""
    return (
        f"{message} has the key of {printable(key_stream)}, and other content than the command "
        f"that was there first"
    )
