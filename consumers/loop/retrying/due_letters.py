"""One consumer's looks for letters that are due.

It looks when partitions were taken, after each commit that wrote or finished letters, when the next
letter that it knows of is due, and at each rebalance while letters wait or are parked, because
another process, or a person, may have finished those before them. Long looks are made less often.
"""

import math
import time
from collections.abc import Callable, Iterable

from consumers.failures.failure import Unhandled

# The pause between two looks at rebalances, as a multiple of how long the last one took.
_PAUSE_FACTOR = 50


class DueLetters:
    """The time of the next look; all times are of the monotonic clock.

    Attributes:
        pace: the seconds between two looks for letters that are due one soon after another, so that
            each look finds several.
    """

    def __init__(self, pace: float = 0.0) -> None:
        self.pace = pace
        self._at = math.inf
        self._not_before = 0.0
        self._paced_until = 0.0
        self._parked = True

    @property
    def now(self) -> bool:
        """Whether it is time to look."""
        return self._at <= time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds until then; infinite if there is no reason to look."""
        return max(self._at - time.monotonic(), 0.0)

    def soon(self) -> None:
        """Look as soon as possible, also for queues whose first letter is parked."""
        self._at, self._parked = 0.0, True

    def also_parked(self) -> None:
        """Look for queues whose first letter is parked at the next look."""
        self._parked = True

    def takes_parked(self) -> bool:
        """Return whether this look includes parked letters, and leave them out of the next."""
        parked, self._parked = self._parked, False
        return parked

    def at_rebalance(self) -> None:
        """Look now, unless the last look was long and recent."""
        if time.monotonic() >= self._not_before:
            self.soon()

    @property
    def looks_for_parked(self) -> bool:
        """Whether the next look includes parked letters."""
        return self._parked

    def looked(self, began: float, next_in: float | None, *, parked: bool = True) -> None:
        """Note a look that began at a time, and the seconds until the next letter is due."""
        now = time.monotonic()
        if parked:
            self._not_before = now + _PAUSE_FACTOR * (now - began)
        self._at = math.inf if next_in is None else max(now + next_in, began + self.pace)
        self._paced_until = began + self.pace

    def wrote(self, letters: Iterable[Unhandled]) -> None:
        """Note letters that were written."""
        now = time.monotonic()
        for letter in letters:
            if letter.failure.wait is not None and not letter.runs:
                self._at = min(self._at, max(now + letter.failure.wait, self._paced_until))


class WaitingCount:
    """The number of messages that wait, counted seldom so that it costs little."""

    def __init__(self) -> None:
        self._number = 0
        self._not_before = 0.0

    def at_rebalance(self, count: Callable[[], int]) -> int:
        """Return how many wait: as counted now, or before if counting takes long."""
        began = time.monotonic()
        if began >= self._not_before:
            self._number = count()
            now = time.monotonic()
            self._not_before = now + _PAUSE_FACTOR * (now - began)
        return self._number
