"""Handling the letters that are due, with what is parked behind them, in the order of each entity.

They are handled as a set, in one transaction. One that fails is dead or waits again, and what is
behind it stays parked. If the transaction fails, the next set is smaller, as a batch is
(`consumers.loop.retrying.bisection`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from psycopg import Connection

from consumers.batch.letter_transaction import RetryResult, RetryTransaction
from consumers.failures.failure import process_died
from consumers.failures.letters import DeadLetters, DueLetter, LettersChanged
from consumers.failures.retries import Retries
from consumers.group.positions import HeldPartitions
from consumers.loop.retrying.attempts import CountedAttempts
from consumers.loop.retrying.bisection import Bisection
from consumers.loop.retrying.due_letters import DueLetters
from consumers.runtime.running_calls import RunningCalls
from consumers.runtime.stopping import Stop
from reservation.errors import MessageError, StoreError

# About how many seconds a set of letters takes, so that new messages do not wait for long.
SLICE = 0.25

R = TypeVar("R")


class RepeatOnConflict(Protocol):
    """Repeats a call until no other transaction conflicts with it; None if it is time to stop."""

    def __call__(self, call: Callable[[bool], R], stop: Stop) -> R | None:
        """Make the call, with a recheck if it is repeated."""


@dataclass(frozen=True, slots=True)
class LetterRetryResult:
    """The result of a look for due letters.

    Attributes:
        result: what became of those that were handled; None if there were none.
        more: whether there may be others that are due.
        of_calls: how many of those that were handled had only waited for async calls.
    """

    result: RetryResult | None = None
    more: bool = False
    of_calls: int = 0

    @property
    def has_failed(self) -> bool:
        """Whether the transaction was rolled back; the next one sets aside what its error named."""
        return self.result is None and self.more


class Retrying:
    """Handles the letters of one consumer that are due."""

    def __init__(
        self,
        dead_letters: DeadLetters,
        due: DueLetters,
        retries: Retries,
        repeat_on_conflict: RepeatOnConflict,
        attempts: CountedAttempts,
        running: RunningCalls,
        most: int,
        concurrency: int = 1,
        limited: int = 1,
    ) -> None:
        self._dead_letters = dead_letters
        self._due = due
        self._retries = retries
        self._repeat_on_conflict = repeat_on_conflict
        self._bisection = Bisection(most, retries)
        self._attempts = attempts
        self._running = running
        self._most = most
        self._limited = limited
        self._least = min(concurrency, most)
        self._size = most  # of the next set: as many as take about `SLICE`

    @property
    def in_progress(self) -> bool:
        """Whether a letter that failed, or may have ended the process, is not yet set aside."""
        return self._bisection.in_progress

    @property
    def one_at_a_time(self) -> bool:
        """Whether the next letter may have ended a process."""
        return self._bisection.one_at_a_time

    def died(self, count: int | None = None) -> None:
        """Note that a process died, which may have been due to one of the next letters."""
        self._bisection.died(count)

    def run(
        self,
        connection: Connection[Any],
        retry_transaction: RetryTransaction,
        positions: HeldPartitions,
        stop: Stop,
        *,
        only_ended: bool = False,
    ) -> LetterRetryResult:
        """Look for letters that are due, or only for those of ended calls; handle a set of them."""
        began = time.monotonic()
        limit = min(self._size, self._bisection.limit)
        ended = self._running.ended_letters() if only_ended else self._running.due()
        parked = not only_ended and self._due.takes_parked()
        due = self._dead_letters.due(
            connection,
            positions.partitions,
            positions.size,
            limit,
            limited=self._limited,
            parked=parked,
            running=self._running.excluded(),
            only=ended if only_ended else None,
        )
        self._due.looked(began, due.next_in, parked=parked)
        if parked and not due.more:  # somebody has discarded the others, or handled them
            self._running.drop(ended - {letter.global_position for letter in due.letters})
        if not due.letters:
            self._bisection.ended()
            return LetterRetryResult()
        if parked:  # for those that are not handled now
            self._due.also_parked()
        letters, more = due.letters, due.more
        began = time.monotonic()
        try:
            result = self._handle(connection, retry_transaction, positions, letters, stop)
        except LettersChanged:  # perhaps those whose failures are noted
            self._bisection.failures.clear()
            return LetterRetryResult(more=True)
        except MessageError as error:
            self._bisection.failed(
                [letter.message for letter in letters], error, _tried(letters, error)
            )
            return LetterRetryResult(more=True)
        except StoreError:
            self._bisection.interrupted(len(letters))
            self._due.soon()
            raise
        if result is None:
            return LetterRetryResult()
        self._bisection.committed(len(letters), result.letters)
        if not any(letter.runs for letter in result.letters):
            self._size = self._next_size(len(letters), time.monotonic() - began)
        self._due.wrote(result.letters)
        if not more:
            self._due.takes_parked()
        set_aside = {letter.message.global_position for letter in result.letters}
        handled = {letter.entity for letter in letters if letter.global_position not in set_aside}
        if handled - result.freed - {None}:  # their queues have further letters
            self._due.also_parked()
        of_calls = len((ended & set(result.positions)) - set_aside)
        again = result.handled > 0 and (not self._due.pace or self._due.looks_for_parked)
        return LetterRetryResult(result, more or again, of_calls)

    def _next_size(self, letters: int, seconds: float) -> int:
        """Return how many letters to handle next, so that new messages are not held up for long."""
        if seconds > SLICE:
            return max(int(letters * SLICE / seconds), self._least)
        return min(self._size * 2, self._most)

    def _handle(
        self,
        connection: Connection[Any],
        retry_transaction: RetryTransaction,
        positions: HeldPartitions,
        letters: Sequence[DueLetter],
        stop: Stop,
    ) -> RetryResult | None:
        """Handle letters; None if it is time to stop."""
        failures = self._bisection.failures
        tried = {letter.global_position: letter.attempts for letter in letters}

        def handle(recheck: bool) -> RetryResult:
            return retry_transaction.run(positions, letters, tried, failures, recheck=recheck)

        if not self._bisection.one_at_a_time:
            return self._repeat_on_conflict(handle, stop)
        (letter,) = letters

        def attempt(number: int) -> RetryResult | None:
            tried[letter.global_position] = number - 1
            if number > self._retries.most(letter.message.type):
                failures[letter.global_position] = process_died(str(letter.message), number - 1)
            try:
                return self._repeat_on_conflict(handle, stop)
            except MessageError as error:
                self._bisection.failed([letter.message], error, number - 1)
                return self._repeat_on_conflict(handle, stop)

        return self._attempts.run(
            ("letter", letter.global_position),
            lambda: self._repeat_on_conflict(
                lambda _: self._dead_letters.count_attempt(connection, letter), stop
            ),
            lambda: self._dead_letters.uncount_attempt(connection, letter),
            attempt,
        )


def _tried(letters: Sequence[DueLetter], error: MessageError) -> int:
    """Return how often the letter that an error names was tried."""
    for letter in letters:
        if letter.global_position == error.global_position or len(letters) == 1:
            return letter.attempts
    return 0
