"""Writing scheduled messages of the store that are due, which a consumer does besides its work.

Every consumer's process does so: between two batches, where it waits, and, while a batch takes
long, from the thread that renews its lease. One call writes a set, and is one commit. The process
knows the time of the next message from each rebalance of its group, and from a notice where a
sooner one is scheduled.
"""

import time
from typing import Any

from psycopg import Connection

from consumers.runtime.observability.logs import Log
from consumers.runtime.observability.telemetry import Telemetry
from reservation.postgres.error_translation import TO_BE_RETRIED
from reservation.store.writing.scheduling import count_scheduled, write_due

# Seconds until the next attempt while another process writes them, or somebody holds a lock. Each
# further pause is twice as long, up to the longest.
PAUSE = 0.05
LONGEST_PAUSE = 1.0

# Seconds between two counts of what is scheduled, for metrics, and how many messages are counted.
COUNT_AFTER = 15.0
MOST_COUNTED = 100_000


class Schedule:
    """The time of the store's next scheduled message, as far as one process knows."""

    def __init__(self, log: Log, telemetry: Telemetry) -> None:
        self._log = log
        self._telemetry = telemetry
        # By the monotonic clock.
        self._next = float("inf")
        self._not_before = 0.0
        self._pause = PAUSE
        self._count_at = 0.0

    def next_in(self, seconds: float | None) -> None:
        """Note when the next message is due."""
        self._next = float("inf") if seconds is None else time.monotonic() + seconds

    def look(
        self, connection: Connection[Any], next_in: float | None, overdue: float | None
    ) -> None:
        """Note what a rebalance has found."""
        self.next_in(next_in)
        count = None
        if overdue is None:
            count, self._count_at = 0, 0.0
        elif time.monotonic() >= self._count_at:
            count = count_scheduled(connection, MOST_COUNTED)
            self._count_at = time.monotonic() + COUNT_AFTER
        self._telemetry.scheduled(overdue or 0.0, count)

    def add(self, seconds: float) -> None:
        """Note that a message was scheduled."""
        self._next = min(self._next, time.monotonic() + seconds)

    @property
    def is_due(self) -> bool:
        """Whether it is time for `write`."""
        return time.monotonic() >= max(self._next, self._not_before)

    def limit(self, seconds: float) -> float:
        """Return so many seconds, or less if it is time for `write` earlier."""
        next_attempt = max(self._next, self._not_before)
        return max(0.0, min(seconds, next_attempt - time.monotonic()))

    def write(self, connection: Connection[Any]) -> bool:
        """Write what is due, up to a limit; return whether anything was written."""
        try:
            result = write_due(connection)
        except TO_BE_RETRIED:
            self._postpone()
            return False
        self.next_in(result.next_in)
        self._telemetry.wrote_scheduled(result.written, result.refused)
        if result.written or result.refused:
            self._pause = PAUSE
        elif self.is_due:
            self._postpone()
        if result.written:
            self._log.info("scheduled_written", count=result.written)
        if result.refused:
            self._log.warning("scheduled_refused", count=result.refused)
        return result.written > 0

    def _postpone(self) -> None:
        """Postpone the next attempt."""
        self._not_before = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
