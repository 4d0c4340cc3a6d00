"""Trying a message several times, each of which was counted before it began.

The count is in the database, so a handler that ends its process is counted too, whichever process
tries next. What ends an attempt for no fault of the message (the database fails, the process is
told to stop) does not count: it is taken back at once, or, where the database is away, not counted
again as long as this process lives.
"""

import contextlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from consumers.dead_letters.failure import Failure, process_died
from consumers.runtime.backoff import Backoff
from consumers.runtime.stopping import Stop
from reservation.errors import MessageError, ReservationError

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Attempted(Generic[R]):
    """How one message is tried. Each call returns None where it is time to stop.

    Attributes:
        key: what tells it from other trials.
        what: names the message in errors.
        count: adds one to the stored count and returns it.
        take_back: takes one from the stored count again.
        attempt: tries.
        give_up: puts the message aside, for a reason, after so many attempts.
    """

    key: Hashable
    what: str
    count: Callable[[], int | None]
    take_back: Callable[[], None]
    attempt: Callable[[], R | None]
    give_up: Callable[[Failure, int], R | None]


class Attempts:
    """The trials of one consumer; it remembers the last one over a lost connection."""

    def __init__(self, most: int) -> None:
        """Prepare.

        Args:
            most: how often a message is tried.
        """
        self._most = most
        self._begun: tuple[Hashable, int] | None = None
        self._failed: tuple[Hashable, Failure] | None = None

    def run(self, trial: Attempted[R], stop: Stop) -> R | None:
        """Try until it succeeds, or give up; None if it is time to stop first."""
        backoff = Backoff()
        while not stop.requested:
            number = self._begin(trial)
            if number is None:
                break
            if number > self._most:
                return self._give_up(trial, number - 1)
            try:
                result = trial.attempt()
            except MessageError as error:
                failure = Failure.of(error)
                self._begun, self._failed = None, (trial.key, failure)
                if number >= self._most or not failure.may_pass:
                    return self._give_up(trial, number)
                stop.wait(backoff.next())
            except ReservationError:
                self._take_back(trial)
                raise
            else:
                if result is None:
                    self._take_back(trial)
                return self._concluded(result)
        return None

    def _take_back(self, trial: Attempted[R]) -> None:
        """Let the attempt that was begun count for nothing."""
        with contextlib.suppress(ReservationError):
            trial.take_back()
            self._begun = None

    def _begin(self, trial: Attempted[R]) -> int | None:
        """Return the number of the attempt that begins, or that was begun and came to no end."""
        if self._begun is None or self._begun[0] != trial.key:
            number = trial.count()
            if number is None:
                return None
            self._begun = trial.key, number
        return self._begun[1]

    def _give_up(self, trial: Attempted[R], attempts: int) -> R | None:
        if self._failed is not None and self._failed[0] == trial.key:
            failure = self._failed[1]
        else:
            failure = process_died(trial.what, attempts)
        return self._concluded(trial.give_up(failure, attempts))

    def _concluded(self, result: R | None) -> R | None:
        """Forget the trial, if it came to an end."""
        if result is not None:
            self._begun = self._failed = None
        return result
