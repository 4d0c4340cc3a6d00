"""Stopping a consumer at the end of its category, and counting what it handled."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NoReturn

from consumers.group.inspection.stored_positions import is_drained
from consumers.runtime.observability.telemetry import Telemetry
from consumers.runtime.session import Session
from consumers.runtime.stopping import Stop


class UntilDrained(Stop):
    """Stops a consumer that would wait, once its category is drained."""

    def __init__(self, session: Session, consumer: str, category: str) -> None:
        super().__init__(takes_signals=False)
        self._session = session
        self._consumer = consumer
        self._category = category

    @property
    def requested(self) -> bool:
        """Whether the category was found drained."""
        return self._requested

    def wait(self, seconds: float, wake: int | None = None) -> bool:
        """Wait, unless the category is drained."""
        if is_drained(self._session.connection, self._consumer, self._category):
            self.request()
        return super().wait(seconds, wake)


class CountingTelemetry(Telemetry):
    """Counts messages by outcome, and does not let a consumer wait for the database."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._set_aside: dict[int, str] = {}

    def committed(
        self, counts: Mapping[str, int], seconds: float, set_aside: Mapping[int, str]
    ) -> None:
        """Count the messages of a batch."""
        super().committed(counts, seconds, set_aside)
        self.counts.update(counts)
        self._set_aside.update(set_aside)

    def retried(
        self,
        positions: Collection[int],
        counts: Mapping[str, int],
        set_aside: Mapping[int, str],
        of_calls: int,
    ) -> None:
        """Replace the counted states of messages that were set aside by their outcomes."""
        super().retried(positions, counts, set_aside, of_calls)
        handled = self._set_aside.keys() & positions
        self.counts.subtract(self._set_aside.pop(position) for position in handled)
        self.counts.update(counts)
        self.counts += Counter()  # drops outcomes whose count is 0
        self._set_aside.update(set_aside)

    def lacks_database(self, error: Exception) -> NoReturn:
        """Raise the error for which a consumer would wait."""
        raise error
