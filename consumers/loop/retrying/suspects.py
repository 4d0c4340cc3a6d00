"""The turns of suspects, which are messages that may have ended a process: one at a time.

If the process ends again, only one suspect can have ended it. Batches of other consumers run beside
it, and may have done so too. After such a death the suspect has the process for itself.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from consumers.runtime.stopping import Stop

# Seconds between two signs of life while others have their turn.
LOOK = 0.2


class Suspects:
    """Gives turns in the order of arrival, and counts the batches that run."""

    def __init__(self) -> None:
        self._waiting: deque[object] = deque()
        self._batches = 0
        self._is_exclusive = False
        self._changed = threading.Condition()

    def take(self, stop: Stop, beat: Callable[[], None], *, exclusive: bool = False) -> bool:
        """Wait for a turn, with no batch beside it if exclusive; False if it is time to stop."""
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            if not self._wait(lambda: self._waiting[0] is ticket, stop, beat):
                self._waiting.remove(ticket)
                return False
            self._is_exclusive = exclusive
            if exclusive and not self._wait(lambda: not self._batches, stop, beat):
                self.give()
                return False
        return True

    def give(self) -> None:
        """End the turn that was taken."""
        with self._changed:
            self._waiting.popleft()
            self._is_exclusive = False
            self._changed.notify_all()

    def begin_batch(self, stop: Stop, beat: Callable[[], None]) -> bool:
        """Wait until a batch may run; False if it is time to stop first."""
        with self._changed:
            if not self._wait(lambda: not self._is_exclusive, stop, beat):
                return False
            self._batches += 1
        return True

    def end_batch(self) -> None:
        """Note the end of a batch."""
        with self._changed:
            self._batches -= 1
            self._changed.notify_all()

    @contextmanager
    def beside(self, stop: Stop, beat: Callable[[], None]) -> Iterator[bool]:
        """Let async calls run as a batch does; give False if it is time to stop first."""
        may_run = self.begin_batch(stop, beat)
        try:
            yield may_run
        finally:
            if may_run:
                self.end_batch()

    def _wait(self, condition: Callable[[], bool], stop: Stop, beat: Callable[[], None]) -> bool:
        """Wait until a condition holds; False if it is time to stop first."""
        while not condition():
            self._changed.wait(LOOK)
            beat()
            if stop.requested:
                return False
        return True
