"""The messages of the next transaction, once one has failed.

If the error names a message, and the work of its handler could not be undone separately, the
transaction is run again up to that message, which is set aside without being tried. A refused
statement or commit names none. Then transactions are halved until one is committed or has one
message; each next one has half of the messages left of the failed one. After a death of the process
each message is handled by itself, so that an attempt can be counted for the one at fault.

Once the message is found, each transaction is up to twice as large as the one before.

If the connection was lost meanwhile, no message is at fault, and none is searched for. The next
transaction is still half as large, in case the last was too large for the server or the network.
"""

from collections.abc import Sequence

from consumers.calls.blame import before
from consumers.failures.failure import Failure, Reason, Unhandled
from consumers.failures.retries import Retries
from reservation.errors import MessageError
from reservation.messages.message import StoredMessage


class Bisection:
    """The size of the next transaction of one consumer, and what is known of its messages.

    Attributes:
        failures: by global position, the failures of messages that are to be set aside.
    """

    def __init__(self, most: int, retries: Retries) -> None:
        self._most = most
        self._retries = retries
        self._size = most
        self._named = 0  # the next messages, up to one whose failure is known
        self._suspects = 0  # the next messages, one of which was refused
        self._counted = 0  # the next messages, one of which may end the process
        self._until = 0  # the position of the last of these, if that is known
        self.failures: dict[int, Failure] = {}

    @property
    def limit(self) -> int:
        """The most messages of the next transaction."""
        if self._counted:
            return 1
        return self._named or self._size

    @property
    def in_progress(self) -> bool:
        """Whether a message that failed, or may have ended the process, is not yet set aside."""
        return bool(self._named or self._suspects or self._counted)

    @property
    def one_at_a_time(self) -> bool:
        """Whether the next message is handled by itself, and its attempts are counted."""
        return self._counted > 0

    def died(self, count: int | None = None, until: int = 0) -> None:
        """Note that a process died, which may have been due to one of the next messages.

        The host may know how many messages the process had in flight, or up to where they were.
        """
        self._counted = max(self._counted, self._most if count is None else count)
        self._until = max(self._until, until)

    def reached(self, position: int) -> int:
        """Note how far the category is handled; return up to where suspects are, if known."""
        if self._until:
            self._counted = 0 if position >= self._until else max(self._counted, 1)
        if not self._counted:
            self._until = 0
        return self._until

    def failed(
        self, messages: Sequence[StoredMessage], error: MessageError, tried: int | None = None
    ) -> None:
        """Note that a transaction failed, and how often the message that it names was tried."""
        earlier = 0 if len(messages) == 1 else before(messages, error.global_position)
        if earlier is None:
            self._named = 0
            self._suspects, self._size = len(messages), max(len(messages) // 2, 1)
            return
        message = messages[earlier]
        failure = self._retries.failure(message.type, error, tried or 0)
        self.failures[message.global_position] = failure
        self._named, self._size = earlier + 1, max(earlier, 1)

    def up_to(self, messages: int) -> None:
        """Take only so many messages next: the one after them is the one that failed."""
        self._named = messages

    def interrupted(self, size: int) -> None:
        """Note that a transaction of so many messages was lost with the connection."""
        self._size = max(min(self._size, size or self._size) // 2, 1)

    def committed(self, size: int, letters: Sequence[Unhandled]) -> None:
        """Note that a transaction of so many messages was committed, and what it set aside."""
        self._named = 0
        for letter in letters:
            self.failures.pop(letter.message.global_position, None)
        is_found = any(letter.failure.reason is Reason.PROCESS_DIED for letter in letters)
        self._counted = 0 if is_found else max(self._counted - size, 1 if self._until else 0)
        self._suspects = max(self._suspects - size, 0)
        if self._suspects:
            self._size = max(self._suspects // 2, 1)
        else:
            self._size = min(self._size * 2, self._most)

    def ended(self) -> None:
        """Note that there are no further messages."""
        self._named = self._suspects = self._counted = self._until = 0
        self._size = self._most
        self.failures.clear()
