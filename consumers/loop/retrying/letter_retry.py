"""Handling dead letters again, and what is parked behind them, in the order of each entity.

The letters are handled as a set if that succeeds, else letter by letter, of each entity up to the
first that fails. If the connection is lost meanwhile, the next set is half as large, because it may
be the set that the server or the network did not bear. The transaction that handles a letter also
marks the next letter of its entity to be handled, so after a crash the retry goes on where it was.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from psycopg import Connection

from consumers.batch.letter_transaction import RetryOutcome, RetryTransaction
from consumers.calls.error_reports import ErrorReports
from consumers.dead_letters.failure import Failure, Letter
from consumers.dead_letters.letters import DeadLetters, DueLetter, LettersChanged
from consumers.group.positions import Positions
from consumers.loop.retrying.attempts import Attemptable, Attempts
from consumers.runtime.stopping import Stop
from reservation.errors import MessageError, StoreError
from reservation.messages.message import StoredMessage

# Seconds that a set of letters takes, about, before new messages have their turn.
SLICE = 0.25

R = TypeVar("R")


class RepeatOnConflict(Protocol):
    """Repeats a call until no other transaction conflicts with it; None if it is time to stop."""

    def __call__(self, call: Callable[[bool], R], stop: Stop) -> R | None:
        """Make the call, with care if it is repeated."""


@dataclass(slots=True)
class Retried:
    """The outcome of the letters that were to be handled again.

    Attributes:
        handled: how many are handled.
        dead: how many are dead again.
        waiting: how many wait for another attempt.
        letters: those that are dead again or wait, where their message is known.
        tried: attempts that failed and were followed by others.
        conflicts: the commands in conflict with an earlier one, and the stream of their key.
        entities: whose lines they are in.
        freed: those of them that no longer have open letters.
        more: whether there may be others that are to be handled now.
    """

    handled: int = 0
    dead: int = 0
    waiting: int = 0
    letters: list[Letter] = field(default_factory=list)
    tried: list[Letter] = field(default_factory=list)
    conflicts: list[tuple[StoredMessage, str]] = field(default_factory=list)
    entities: set[str] = field(default_factory=set)
    freed: set[str] = field(default_factory=set)
    more: bool = False

    @property
    def tries(self) -> int:
        """How many letters were tried."""
        return self.handled + self.dead + self.waiting

    def add(self, outcome: RetryOutcome) -> None:
        """Add the outcome of one transaction."""
        self.handled += outcome.handled
        self.dead += outcome.dead
        self.waiting += outcome.waiting
        self.letters += outcome.letters
        self.tried += outcome.tried
        self.conflicts += outcome.conflicts
        self.entities |= set(outcome.entities)
        self.freed |= set(outcome.freed)


class Retrying:
    """Handles the letters of one consumer again."""

    def __init__(
        self,
        dead_letters: DeadLetters,
        attempts: Attempts,
        repeat: RepeatOnConflict,
        reports: ErrorReports,
        limit: int,
        at_a_time: int = 1,
    ) -> None:
        self._dead_letters = dead_letters
        self._attempts = attempts
        self._repeat = repeat
        self._reports = reports
        self._limit = limit
        self._least = min(at_a_time, limit)
        self._size = limit  # of the next set: as many as take about `SLICE`
        # Whether the last one failed, and its letters were not all tried: a handler may have closed
        # the connection.
        self._set_failed = False

    def run(
        self,
        connection: Connection[Any],
        retry_transaction: RetryTransaction,
        positions: Positions,
        stop: Stop,
        *,
        singly: bool,
    ) -> Retried:
        """Handle the letters that are to be retried, up to the limit."""
        retried = Retried()
        size, began = self._size, time.monotonic()
        letters = self._dead_letters.line_up(connection, positions.partitions, positions.size, size)
        if not letters:
            return retried
        retried.more = letters[0].lined_up == size or letters[0].lined_up > len(letters)
        try:
            singly = singly or self._set_failed
            if singly or not self._as_a_set(retry_transaction, positions, letters, retried, stop):
                self._set_failed = True
                self._one_by_one(connection, retry_transaction, positions, letters, retried, stop)
                self._set_failed = False
        except LettersChanged:
            retried.more = True
        self._size = self._next_size(len(letters), time.monotonic() - began)
        if positions.are_shared:
            retried.freed = retried.entities - self.look_again(connection, retried.entities, stop)
        return retried

    def look_again(
        self, connection: Connection[Any], entities: Collection[str], stop: Stop
    ) -> set[str]:
        """Call the next letters of entities whose letters others may have ended meanwhile."""
        blocked = self._repeat(lambda _: self._dead_letters.look_again(connection, entities), stop)
        return set(entities) if blocked is None else blocked

    def _next_size(self, letters: int, seconds: float) -> int:
        """Return how many letters to handle next, so that new messages are not held up for long."""
        if seconds > SLICE:
            return max(int(letters * SLICE / seconds), self._least)
        return min(self._size * 2, self._limit)

    def _as_a_set(
        self,
        retry_transaction: RetryTransaction,
        positions: Positions,
        letters: Sequence[DueLetter],
        retried: Retried,
        stop: Stop,
    ) -> bool:
        """Handle all letters in one transaction; return whether that succeeded."""
        if len(letters) == 1 or not retry_transaction.can_share(letters):
            return False
        try:
            outcome = self._repeat(
                lambda careful: retry_transaction.run(positions, letters, careful=careful), stop
            )
        except MessageError:
            return False
        except StoreError:
            self._size = max(len(letters) // 2, 1)
            raise
        if outcome is not None:
            retried.add(outcome)
        return True

    def _one_by_one(
        self,
        connection: Connection[Any],
        retry_transaction: RetryTransaction,
        positions: Positions,
        letters: Sequence[DueLetter],
        retried: Retried,
        stop: Stop,
    ) -> None:
        """Handle each in a transaction of its own, of each entity up to the first that fails.

        What is left after `SLICE` has its turn after new messages.
        """
        failed: set[str | None] = set()
        began = time.monotonic()
        for letter in letters:
            if letter.entity in failed:
                continue
            if time.monotonic() - began > SLICE:
                retried.more = True
                return
            outcome = self._attempts.run(
                self._attemptable(connection, retry_transaction, positions, letter, stop), stop
            )
            if outcome is None:
                return
            retried.add(outcome)
            if outcome.failed and letter.entity is not None:
                failed.add(letter.entity)

    def _attemptable(
        self,
        connection: Connection[Any],
        retry_transaction: RetryTransaction,
        positions: Positions,
        letter: DueLetter,
        stop: Stop,
    ) -> Attemptable[RetryOutcome]:
        def count() -> int | None:
            return self._repeat(lambda _: self._dead_letters.attempt(connection, letter), stop)

        def take_back() -> None:
            self._dead_letters.take_back(connection, letter)

        def attempt() -> RetryOutcome | None:
            return self._repeat(
                lambda careful: retry_transaction.run(positions, [letter], careful=careful), stop
            )

        def give_up(failure: Failure, attempts: int) -> RetryOutcome | None:
            return self._repeat(
                lambda _: retry_transaction.bury_again(positions, letter, failure, attempts), stop
            )

        failed = self._reports.retried(letter.message, letter.entity)
        key = ("letter", letter.global_position)
        return Attemptable(
            key, letter.described, count, take_back, attempt, give_up, letter.earlier, failed
        )
