"""The consumers of a process that are stuck in a handler's call."""

import time
from collections.abc import Iterable, Iterator

from consumers.group.inspection.stored_positions import ConsumerId
from consumers.runtime.in_flight import Record

# Seconds between two looks.
LOOK = 1.0


class Stuck:
    """Watches the consumers of one process, look after look.

    Only the time between looks counts, so a host that was paused itself takes nobody to be stuck.
    """

    def __init__(self, after: float) -> None:
        self._after = after
        self._seen: dict[ConsumerId, tuple[int, int]] = {}
        self._silent: dict[ConsumerId, float] = {}
        self._looked = time.monotonic()

    def among(
        self, records: Iterable[tuple[ConsumerId, Record]]
    ) -> Iterator[tuple[ConsumerId, Record]]:
        """Yield those that gave no sign of life for too long while a handler was called."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 2 * LOOK), now
        for reads, record in records:
            seen = record.called, record.signs
            if record.called and self._seen.get(reads) == seen:
                self._silent[reads] = self._silent.get(reads, 0.0) + passed
                if self._silent[reads] >= self._after:
                    yield reads, record
            else:
                self._silent[reads] = 0.0
            self._seen[reads] = seen
