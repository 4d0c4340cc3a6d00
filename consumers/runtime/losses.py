"""Connections that are lost during the calls for one message, again and again.

A lost connection is no fault of the message that is handled at that moment, and its handler is
called again. A handler may also end its own session, as with `pg_terminate_backend`. Nothing tells
these apart but how often the connection is lost in its call and nowhere else, while the server
takes a new one at the first attempt. So an outage, which refuses some, is no message's failure.
"""

from reservation.errors import DatabaseUnavailableError, HandlerError, StoreError
from reservation.messages.message import StoredMessage

# So often in a row a connection is lost in the call for a message before that is its failure.
MOST = 5


class Losses:
    """The losses of one consumer.

    Attributes:
        singly_until: the global position up to which no statements of several messages are sent
            together, because the connection was lost when they were; which one ended it shows then.
    """

    def __init__(self) -> None:
        self.singly_until = 0
        self._message: int | None = None
        self._times = 0
        self._last: StoreError | None = None

    def fault_of(
        self, message: StoredMessage, error: DatabaseUnavailableError
    ) -> HandlerError | None:
        """Return the failure of a message in whose call the connection was lost, if any."""
        self._last = error
        if self._message != message.global_position:
            self._message, self._times = message.global_position, 0
        self._times += 1
        if self._times < MOST:
            return None
        return HandlerError(
            f"The connection to the database was lost {self._times} times in a row while {message} "
            f"was handled; its handler must not end the session of the connection"
        )

    def recovered(self, error: StoreError, *, was_refused: bool) -> None:
        """Note that there is a connection again."""
        if was_refused or error is not self._last:
            self._message = None

    def none_of(self, message: StoredMessage) -> None:
        """Note a call that did not lose the connection."""
        if self._message == message.global_position:
            self._message = None
