"""Trying a message several times; each attempt is counted before it begins.

The count is in the database. A handler that ends its process is therefore counted too, whichever
process tries next. An attempt that does not end because of the message (the database fails, the
process has to stop) does not count: the count is reduced directly, or, where the database is
unavailable, the next attempt of this process is not counted.
"""

import contextlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from consumers.dead_letters.failure import Failure, process_died
from consumers.runtime.backoff import Backoff
from consumers.runtime.observability.error_detail import PLACE_ONLY, ErrorDetail
from consumers.runtime.stopping import Stop
from reservation.errors import MessageError, ReservationError

R = TypeVar("R")


def _nobody_is_told(failure: Failure, number: int) -> None:
    """Stand for reports of failed attempts."""
    del failure, number


@dataclass(frozen=True, slots=True)
class Attemptable(Generic[R]):
    """How one message is tried. Each call returns None when it is time to stop.

    Attributes:
        key: identifies the message.
        what: names the message in errors.
        count: adds one to the stored count and returns it.
        take_back: subtracts one from the stored count.
        attempt: handles the message.
        give_up: sets the message aside, for a reason, after a number of attempts.
        earlier: how many attempts were counted before it waited for this one; they do not reduce
            how often it is tried now.
        failed: told of each attempt after which the message is tried again, with its number.
    """

    key: Hashable
    what: str
    count: Callable[[], int | None]
    take_back: Callable[[], None]
    attempt: Callable[[], R | None]
    give_up: Callable[[Failure, int], R | None]
    earlier: int = 0
    failed: Callable[[Failure, int], None] = _nobody_is_told


class Attempts:
    """The attempts of one consumer; the last is remembered when a connection is lost."""

    def __init__(self, most: int, detail: ErrorDetail = PLACE_ONLY) -> None:
        self._most = most
        self._detail = detail
        self._begun: tuple[Hashable, int] | None = None
        self._failed: tuple[Hashable, Failure] | None = None

    def run(self, message: Attemptable[R], stop: Stop) -> R | None:
        """Try until an attempt succeeds, or give up."""
        backoff = Backoff()
        most = self._most + message.earlier
        while not stop.requested:
            number = self._begin(message)
            if number is None:
                break
            if number > most:
                return self._give_up(message, number - 1)
            try:
                result = message.attempt()
            except MessageError as error:
                failure = Failure.of(error, self._detail)
                self._begun, self._failed = None, (message.key, failure)
                if number >= most or not failure.may_pass:
                    return self._give_up(message, number)
                message.failed(failure, number)
                stop.wait(backoff.next())
            except ReservationError:
                self._take_back(message)
                raise
            else:
                if result is None:
                    self._take_back(message)
                return self._concluded(result)
        return None

    def _take_back(self, message: Attemptable[R]) -> None:
        """Uncount the attempt that was begun."""
        with contextlib.suppress(ReservationError):
            message.take_back()
            self._begun = None

    def _begin(self, message: Attemptable[R]) -> int | None:
        """Return the number of the attempt that begins, or that was begun and did not end."""
        if self._begun is None or self._begun[0] != message.key:
            number = message.count()
            if number is None:
                return None
            self._begun = message.key, number
        return self._begun[1]

    def _give_up(self, message: Attemptable[R], attempts: int) -> R | None:
        if self._failed is not None and self._failed[0] == message.key:
            failure = self._failed[1]
        else:
            failure = process_died(message.what, attempts)
        return self._concluded(message.give_up(failure, attempts))

    def _concluded(self, result: R | None) -> R | None:
        """Forget the message, if there is a result."""
        if result is not None:
            self._begun = self._failed = None
        return result
