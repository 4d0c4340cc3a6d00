"""How much to read for a batch, where some messages cannot share a transaction with others.

A batch ends before and after a message with a transaction of its own, and once there is enough to
write. What was read after that is discarded
and read again. So the next batch reads only as much as was used, and each batch that is used
completely doubles that.
"""

from collections.abc import Collection, Sequence

from reservation.messages.message import StoredMessage

_ENOUGH = 1 << 20  # messages, more than any batch has

# Of data and metadata, in UTF-8. A batch ends with the message that reaches them.
DEFAULT_BATCH_BYTES = 16 << 20


class BatchSize:
    """The size of the next batch, learned from the last ones."""

    def __init__(self, own: Collection[str]) -> None:
        self._own = own
        self._most: int | None = None

    def limit(self, limit: int) -> int:
        """Return how many messages to read where ``limit`` may be."""
        return limit if self._most is None else min(limit, self._most)

    def used(self, count: int) -> None:
        """Note that only so many messages of those that were read were handled."""
        self._most = count

    def cut(self, messages: Sequence[StoredMessage]) -> int:
        """Return how many of the messages read, from the first on, make up a batch."""
        for n, message in enumerate(messages if self._own else ()):
            if message.type in self._own:
                self._most = 1
                return max(n, 1)
        if messages:
            self.used_all()
        return len(messages)

    def used_all(self) -> None:
        """Note that all messages that were read make up a batch."""
        if self._most is not None:
            self._most = min(2 * self._most, _ENOUGH)
