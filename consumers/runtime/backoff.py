"""The wait before another attempt."""

import random

FIRST = 0.1
LONGEST = 10.0


class Backoff:
    """Delays that double, each shortened at random so that many waiting processes spread out."""

    def __init__(self, first: float = FIRST, longest: float = LONGEST) -> None:
        self._first = first
        self._longest = longest
        self._limit = first

    def next(self) -> float:
        """Return the seconds to wait now: from half of the limit to all of it."""
        limit = self._limit
        self._limit = min(self._longest, limit * 2)
        return random.uniform(limit / 2, limit)

    def reset(self) -> None:
        """Begin with the first delay again, after a success."""
        self._limit = self._first
