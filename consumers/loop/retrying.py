"""Handling dead letters again, and what is parked behind them, in the order of each entity.

A line is handled as a set if that goes well, else letter by letter up to the first that fails. Each
letter that is handled calls the next of its line in the same transaction, so a crash at any
point leaves a line that goes on where it was.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from psycopg import Connection

from consumers.batch.retry_transaction import RetryOutcome, RetryTransaction
from consumers.dead_letters.failure import Failure, Letter
from consumers.dead_letters.letters import DeadLetters, DueLetter, LettersChanged
from consumers.group.positions import Positions
from consumers.loop.attempts import Attempted, Attempts
from consumers.runtime.stopping import Stop
from reservation.errors import MessageError
from reservation.messages.message import StoredMessage

R = TypeVar("R")


class RetryOnConflict(Protocol):
    """Makes a call until no other transaction is in its way; None if it is time to stop."""

    def __call__(self, call: Callable[[bool], R], stop: Stop) -> R | None:
        """Make the call, with care if it has to be made again."""


@dataclass(slots=True)
class Retried:
    """What became of the letters that were to be handled again.

    Attributes:
        handled: how many of them are handled.
        dead: how many are dead again.
        letters: these, where their message is known.
        conflicts: those found in conflict with an earlier command, and the stream of their key.
        freed: the entities that nothing waits for any more.
        more: whether there may be others that are to be handled now.
    """

    handled: int = 0
    dead: int = 0
    letters: list[Letter] = field(default_factory=list)
    conflicts: list[tuple[StoredMessage, str]] = field(default_factory=list)
    freed: set[str] = field(default_factory=set)
    more: bool = False

    def add(self, settled: RetryOutcome) -> None:
        """Add what became of some of them."""
        self.handled += settled.handled
        self.dead += settled.died
        self.letters += settled.letters
        self.conflicts += settled.conflicts
        self.freed |= set(settled.freed)


class Retrying:
    """What handles the letters of one consumer again."""

    def __init__(
        self, dead_letters: DeadLetters, trials: Attempts, persistently: RetryOnConflict, limit: int
    ) -> None:
        """Prepare.

        Args:
            dead_letters: where they are.
            trials: how often each is tried.
            persistently: makes the calls.
            limit: how many to handle in one transaction.
        """
        self._dead_letters = dead_letters
        self._trials = trials
        self._persistently = persistently
        self._limit = limit

    def run(
        self,
        connection: Connection[Any],
        settling: RetryTransaction,
        positions: Positions,
        stop: Stop,
        *,
        singly: bool,
    ) -> Retried:
        """Handle the letters that are to be retried, up to the limit.

        Args:
            connection: in autocommit.
            settling: what handles them.
            positions: the partitions that are held.
            stop: what ends it early.
            singly: whether one of them may end the process, so that each is to be counted before.

        Raises:
            PositionLostError: another process has taken a partition over.
        """
        retried = Retried()
        letters = self._dead_letters.line_up(
            connection, positions.partitions, positions.size, self._limit
        )
        if not letters:
            return retried
        retried.more = len(letters) == self._limit
        try:
            if singly or not self._as_a_set(settling, positions, letters, retried, stop):
                self._one_by_one(connection, settling, positions, letters, retried, stop)
        except LettersChanged:
            retried.more = True
        return retried

    def _as_a_set(
        self,
        settling: RetryTransaction,
        positions: Positions,
        letters: Sequence[DueLetter],
        retried: Retried,
        stop: Stop,
    ) -> bool:
        """Handle all of them in one transaction; return whether that went well."""
        alone = settling.never_in_sets
        if len(letters) == 1 or any(one.message and one.message.type in alone for one in letters):
            return False
        try:
            settled = self._persistently(
                lambda careful: settling.settle(positions, letters, careful=careful), stop
            )
        except MessageError:
            return False
        if settled is not None:
            retried.add(settled)
        return True

    def _one_by_one(
        self,
        connection: Connection[Any],
        settling: RetryTransaction,
        positions: Positions,
        letters: Sequence[DueLetter],
        retried: Retried,
        stop: Stop,
    ) -> None:
        """Handle each in a transaction of its own, of each entity up to the first that fails."""
        failed: set[str | None] = set()
        for letter in letters:
            if letter.entity in failed:
                continue
            settled = self._trials.run(
                self._trial(connection, settling, positions, letter, stop), stop
            )
            if settled is None:
                return
            retried.add(settled)
            if settled.died and letter.entity is not None:
                failed.add(letter.entity)

    def _trial(
        self,
        connection: Connection[Any],
        settling: RetryTransaction,
        positions: Positions,
        letter: DueLetter,
        stop: Stop,
    ) -> Attempted[RetryOutcome]:
        def count() -> int | None:
            return self._persistently(
                lambda _: self._dead_letters.attempt(connection, letter), stop
            )

        def take_back() -> None:
            self._dead_letters.take_back(connection, letter)

        def attempt() -> RetryOutcome | None:
            return self._persistently(
                lambda careful: settling.settle(positions, [letter], careful=careful), stop
            )

        def give_up(failure: Failure, attempts: int) -> RetryOutcome | None:
            return self._persistently(
                lambda _: settling.bury_again(positions, letter, failure, attempts), stop
            )

        key = ("letter", letter.global_position)
        return Attempted(key, letter.told, count, take_back, attempt, give_up)
