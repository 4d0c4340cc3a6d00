"""The pace of questions while an outcome is waited for."""

import time

from reservation.errors import StoreError


class Pace:
    """The time that is left of a wait, and the pauses between its questions.

    Without notices a pause is a part of the time that has passed, so waiting costs few questions
    and ends little later than it could. With notices a question is asked once there is something to
    see, and pauses are for what no notice is given of: a dead letter, or a handler without events.
    """

    def __init__(self, timeout: float) -> None:
        if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not timeout >= 0:
            raise StoreError(f"timeout={timeout!r} is not a number of seconds; give 0 or more")
        self._began = time.monotonic()
        self._until = self._began + timeout

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._until

    def pause(self, *, notices: bool) -> float:
        """Return how long to wait until the next question, in seconds."""
        now = time.monotonic()
        least, share, most = (0.1, 0.5, 1.0) if notices else (0.01, 0.2, 0.5)
        return max(0.0, min(max(least, (now - self._began) * share), most, self._until - now))
