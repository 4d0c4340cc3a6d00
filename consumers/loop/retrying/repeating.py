"""Repeating a transaction until no other conflicts with it."""

from collections.abc import Callable
from typing import TypeVar

from consumers.runtime.backoff import Backoff
from consumers.runtime.event_loop import CallsCancelledError
from consumers.runtime.observability.logs import Log
from consumers.runtime.observability.telemetry import Telemetry
from consumers.runtime.stopping import Stop
from reservation.errors import LockTimeoutError
from reservation.postgres.error_translation import TO_BE_RETRIED

R = TypeVar("R")


class RepeatingOnConflict:
    """Repeats the transactions of one consumer."""

    def __init__(self, log: Log, telemetry: Telemetry, lowest: Callable[[], int]) -> None:
        self._log = log
        self._telemetry = telemetry
        self._lowest = lowest

    def __call__(self, call: Callable[[bool], R], stop: Stop) -> R | None:
        """Repeat a call until no other transaction conflicts with it; None if it is time to stop.

        The call is given whether to recheck, because an earlier attempt lost a race.
        """
        lost = 0
        backoff = Backoff()
        while True:
            self._telemetry.beat()
            try:
                return call(lost > 0)
            except CallsCancelledError:
                self._log.warning("calls_cancelled")
                return None
            except LockTimeoutError:
                self._log.info("lock_awaited", position=self._lowest())
                if stop.requested:
                    return None
            except TO_BE_RETRIED as error:
                lost += 1
                reason = type(error).__name__
                if lost == 1:  # the recheck locks the categories, so no other writer can be first
                    self._log.info("race_lost", error=reason)
                    continue
                delay = backoff.next()
                self._log.warning(
                    "race_lost_again", times=lost, error=reason, delay=round(delay, 3)
                )
                if stop.wait(delay):
                    return None
