"""The consumers of a process that are stuck in a call of a handler."""

import time
from collections.abc import Iterable, Iterator

from consumers.group.inspection.stored_positions import ConsumerId
from consumers.runtime.in_flight import Record

# Seconds between two looks.
LOOK = 1.0


class Stuck:
    """Watches the consumers of one process, look after look.

    Only the time between looks counts, so none is taken for stuck because the host was paused.
    """

    def __init__(self, after: float) -> None:
        self._after = after
        self._seen: dict[ConsumerId, tuple[int, int]] = {}
        self._silent: dict[ConsumerId, float] = {}
        self._looked_at = time.monotonic()

    def among(
        self, records: Iterable[tuple[ConsumerId, Record]]
    ) -> Iterator[tuple[ConsumerId, Record]]:
        """Yield those that gave no sign of life for too long while a handler was called."""
        now = time.monotonic()
        elapsed, self._looked_at = min(now - self._looked_at, 2 * LOOK), now
        for consumer_id, record in records:
            signs = record.called, record.signs
            if record.called and self._seen.get(consumer_id) == signs:
                self._silent[consumer_id] = self._silent.get(consumer_id, 0.0) + elapsed
                if self._silent[consumer_id] >= self._after:
                    yield consumer_id, record
            else:
                self._silent[consumer_id] = 0.0
            self._seen[consumer_id] = signs
