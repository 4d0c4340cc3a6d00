"""The messages that a process had in flight when it died, which are handled one by one."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager

from consumers.loop.retrying.attempts import CountedAttempts
from consumers.loop.retrying.bisection import Bisection
from consumers.loop.retrying.letter_retry import Retrying
from consumers.loop.retrying.suspects import Suspects
from consumers.runtime.in_flight import InFlight
from consumers.runtime.stopping import Stop


class Deaths:
    """Takes over messages from processes that died, and says when they are handled."""

    def __init__(
        self,
        in_flight: InFlight,
        suspects: Suspects,
        bisection: Bisection,
        retrying: Retrying,
        attempts: CountedAttempts,
        beat: Callable[[], None],
    ) -> None:
        self._in_flight = in_flight
        self._suspects = suspects
        self._bisection = bisection
        self._retrying = retrying
        self._attempts = attempts
        self._beat = beat

    def take_over(self, partitions: Iterable[int], lowest: int, head: int) -> None:
        """Handle what was in flight of some partitions one by one, between two positions.

        If that is not known, because the host died too, it is as many messages as a batch has.
        """
        records = self._in_flight.left(partitions)
        if records is None:
            self._bisection.died()
            self._retrying.died()
            return
        for record in records:
            if record.owed < 0 or record.owed > lowest:
                key: Hashable = record.owed if record.owed > 0 else ("letter", -record.owed)
                self._attempts.corrections[key] = record.correction
                self._in_flight.owes(record)
            if record.running:
                self._retrying.died(record.running)
            if record.are_letters and record.count:
                self._retrying.died(record.count)
            elif record.last > lowest:
                self._bisection.died(1, record.last)
            elif not record.last and lowest < record.first <= head:
                self._bisection.died(record.count)

    @contextmanager
    def permit(self, one_at_a_time: bool, stop: Stop) -> Iterator[bool]:
        """Let the next transaction run; give False if it is time to stop first.

        A process handles one suspect at a time, with no batch beside it if other messages in flight
        may have ended the process too.
        """
        if one_at_a_time:
            self._in_flight.waits()
            exclusive = any(correction < 0 for correction in self._attempts.corrections.values())
            may_run, end = (
                self._suspects.take(stop, self._beat, exclusive=exclusive),
                self._suspects.give,
            )
        else:
            may_run, end = self._suspects.begin_batch(stop, self._beat), self._suspects.end_batch
        try:
            yield may_run
        finally:
            if may_run:
                end()
