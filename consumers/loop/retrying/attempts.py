"""Counting the attempts at a message that may end its process, each before it begins.

The count is in the database, so it holds whichever process tries next. An attempt that does not end
because of the message (the database fails, the process has to stop) does not count: the count is
reduced directly, or, where the database is unavailable, the next attempt of this process is not
counted.
"""

import contextlib
from collections.abc import Callable, Hashable
from typing import TypeVar

from reservation.errors import MessageError, ReservationError

R = TypeVar("R")


def _ignore(global_position: int, is_letter: bool) -> None:
    """Ignore that an attempt is counted."""
    del global_position, is_letter


class CountedAttempts:
    """The attempts of one consumer; those that have begun survive the loss of a connection.

    Attributes:
        corrections: by the key of a message, what is to be added to its stored count: -1 if others
            in flight may have ended the process, 1 if an attempt was not counted.
    """

    def __init__(self, note_counted: Callable[[int, bool], None] = _ignore) -> None:
        self._note_counted = note_counted
        self.corrections: dict[Hashable, int] = {}
        self._begun: dict[Hashable, int] = {}

    def run(
        self,
        key: Hashable,
        count: Callable[[], int | None],
        uncount_attempt: Callable[[], None],
        attempt: Callable[[int], R | None],
    ) -> R | None:
        """Try a message once, with the number of the attempt; None if it is time to stop."""
        number = self._begin(key, count, uncount_attempt)
        if number is None:
            return None
        try:
            result = attempt(number)
        except MessageError:
            self._end(key)
            raise
        except ReservationError:
            self._uncount_attempt(key, uncount_attempt)
            raise
        if result is None:
            self._uncount_attempt(key, uncount_attempt)
        else:
            self._end(key)
        return result

    def _begin(
        self, key: Hashable, count: Callable[[], int | None], uncount_attempt: Callable[[], None]
    ) -> int | None:
        """Return the number of the attempt that begins, or that has begun and not ended."""
        if key not in self._begun:
            correction = self.corrections.pop(key, 0)
            if correction < 0:
                uncount_attempt()
            # Noted first: if the process dies while it counts, its host takes the count back, which
            # changes nothing if that was not committed.
            position = key[1] if isinstance(key, tuple) else int(str(key))
            self._note_counted(position, isinstance(key, tuple))
            number = count()
            if number is not None and correction > 0:
                number = count()
            if number is None:
                return None
            self._begun[key] = number
        return self._begun[key]

    def _uncount_attempt(self, key: Hashable, uncount_attempt: Callable[[], None]) -> None:
        """Uncount the attempt that has begun."""
        with contextlib.suppress(ReservationError):
            uncount_attempt()
            self._end(key)

    def _end(self, key: Hashable) -> None:
        """Note the end of an attempt."""
        del self._begun[key]
        self._note_counted(0, False)
