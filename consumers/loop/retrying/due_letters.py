"""When letters that wait for their next attempt are due, as far as one consumer knows.

The store says so when partitions were taken, and after letters were handled again. In between the
consumer knows of each letter that it writes itself. So one that has no such letter asks nothing.
"""

import math
import time
from collections.abc import Iterable
from typing import Any

from psycopg import Connection

from consumers.dead_letters.failure import Letter
from consumers.dead_letters.letters import DeadLetters
from consumers.group.positions import Positions

# Seconds until the next look, where letters are due that cannot be handled yet: one that is dead is
# before them.
LOOK_AGAIN = 1.2


class DueLetters:
    """The time of the next attempt at any letter of one consumer."""

    def __init__(self, dead_letters: DeadLetters) -> None:
        self._dead_letters = dead_letters
        self._at = math.inf  # by the monotonic clock

    @property
    def now(self) -> bool:
        """Whether a letter is due."""
        return self._at <= time.monotonic()

    @property
    def any(self) -> bool:
        """Whether any letter waits."""
        return self._at < math.inf

    @property
    def seconds(self) -> float:
        """The seconds until one is due; infinite if none waits."""
        return max(self._at - time.monotonic(), 0.0)

    def look(
        self, connection: Connection[Any], positions: Positions, *, in_vain: bool = False
    ) -> None:
        """Ask the store."""
        seconds = self._dead_letters.next_attempt(connection, positions.partitions, positions.size)
        if seconds is None:
            self._at = math.inf
        else:
            self._at = time.monotonic() + max(seconds, LOOK_AGAIN if in_vain else 0.0)

    def add(self, letters: Iterable[Letter]) -> None:
        """Note letters that were written."""
        for letter in letters:
            if letter.failure.wait is not None:
                self._at = min(self._at, time.monotonic() + letter.failure.wait)
