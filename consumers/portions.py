"""How much to read at once, where some messages need a transaction of their own.

A batch ends before such a message, and after it. What was read behind that is thrown away and read
again, so as little as one message is read where they come one after another, and twice as many each
time that they do not.
"""

from collections.abc import Collection, Sequence

from reservation.message import StoredMessage

_ENOUGH = 1 << 20  # messages, more than anybody reads at once


class Portions:
    """The size of the next batch, learned from the last ones."""

    def __init__(self, alone: Collection[str]) -> None:
        """Begin with as much as may be read.

        Args:
            alone: the types of messages that need a transaction of their own.
        """
        self._alone = alone
        self._most: int | None = None

    def limit(self, limit: int) -> int:
        """Return how many messages to read where ``limit`` may be."""
        return limit if self._most is None else min(limit, self._most)

    def cut(self, messages: Sequence[StoredMessage]) -> int:
        """Return how many of the messages read, from the first on, make up a batch."""
        if not self._alone or not messages:
            return len(messages)
        for n, message in enumerate(messages):
            if message.type in self._alone:
                self._most = 1
                return max(n, 1)
        if self._most is not None:
            self._most = min(2 * self._most, _ENOUGH)
        return len(messages)
