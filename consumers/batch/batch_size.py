"""How much to read at once, where some messages can not share a transaction with their neighbours.

A batch ends before and after a message that goes alone, and where messages that are dealt with in
two steps begin or end. What was read behind that is thrown away and read again, so no more is read
next time than was of use, and twice as much each time that all of it was.
"""

from collections.abc import Callable, Collection, Sequence

from reservation.messages.message import StoredMessage

_ENOUGH = 1 << 20  # messages, more than anybody reads at once


class BatchSize:
    """The size of the next batch, learned from the last ones."""

    def __init__(
        self,
        alone: Collection[str],
        is_two_phase: Callable[[StoredMessage], bool] | None = None,
    ) -> None:
        """Begin with as much as may be read.

        Args:
            alone: the types of messages that need a transaction of their own.
            is_two_phase: tells messages that share theirs with each other only; None if there are
                none.
        """
        self._alone = alone
        self._is_two_phase = is_two_phase
        self._most: int | None = None

    def limit(self, limit: int) -> int:
        """Return how many messages to read where ``limit`` may be."""
        return limit if self._most is None else min(limit, self._most)

    def cut(self, messages: Sequence[StoredMessage]) -> int:
        """Return how many of the messages read, from the first on, make up a batch."""
        two_steps = self._is_two_phase
        if not messages or not (self._alone or two_steps):
            return len(messages)
        first = two_steps is not None and two_steps(messages[0])
        for n, message in enumerate(messages):
            if message.type in self._alone:
                self._most = 1
                return max(n, 1)
            if two_steps is not None and two_steps(message) is not first:
                self._most = n
                return n
        if self._most is not None:
            self._most = min(2 * self._most, _ENOUGH)
        return len(messages)
