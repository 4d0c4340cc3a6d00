"""The amount to read for a batch, where its effects are large.

A batch ends once there is enough to write. What was read after that is discarded and read again. So
the next batch reads only as much as was used, and each batch that is used completely doubles that.
"""

_ENOUGH = 1 << 20  # messages, more than any batch has


class BatchSize:
    """The size of the next batch, learned from the last ones."""

    def __init__(self) -> None:
        self._most: int | None = None

    def limit(self, limit: int) -> int:
        """Return how many messages to read where ``limit`` may be."""
        return limit if self._most is None else min(limit, self._most)

    def used(self, count: int) -> None:
        """Note that only so many messages of those that were read were handled."""
        self._most = count

    def used_all(self) -> None:
        """Note that all messages that were read make up a batch."""
        if self._most is not None:
            self._most = min(2 * self._most, _ENOUGH)
