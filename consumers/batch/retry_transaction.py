"""Handling letters again: one transaction for what they bring about and for their states."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from consumers.batch.blame import transaction
from consumers.batch.effects import BatchEffects
from consumers.dead_letters.failure import Failure, Letter
from consumers.dead_letters.letters import DeadLetters, DueLetter
from consumers.group.positions import Positions
from consumers.handling.blocking import ALL_OR_NOTHING
from consumers.handling.decisions import Decisions
from reservation.errors import DecodeError
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import translated


@dataclass(frozen=True, slots=True)
class RetryOutcome:
    """What became of letters that were handled again.

    Attributes:
        handled: how many of them are handled now.
        died: whether one is dead again.
        conflicts: the commands found in conflict, and the stream of their key.
        letters: those that are dead again, and whose message is known.
        freed: the entities that nothing waits for any more.
    """

    handled: int = 0
    died: bool = False
    conflicts: Sequence[tuple[StoredMessage, str]] = ()
    letters: Sequence[Letter] = ()
    freed: Collection[str] = ()


class RetryTransaction:
    """How one consumer handles letters of its category again."""

    def __init__(
        self, connection: Connection[Any], effects: BatchEffects, dead_letters: DeadLetters
    ) -> None:
        """Prepare.

        Args:
            connection: not in a transaction.
            effects: what the letters' messages bring about.
            dead_letters: where the letters are.
        """
        self._connection = connection
        self._effects = effects
        self._dead_letters = dead_letters

    @property
    def alone(self) -> Collection[str]:
        """The types of messages that are handled alone, or in two transactions."""
        return {*self._effects.alone, *self._effects.stateful}

    def settle(
        self, positions: Positions, letters: Sequence[DueLetter], *, careful: bool = False
    ) -> RetryOutcome:
        """Handle letters again, all of them or none.

        Args:
            positions: what is held of the category, and of it the letters' partitions.
            letters: of each entity the first of its line, in order.
            careful: as for `run`.

        Raises:
            LettersChanged: some of them are not to be retried any more; nothing is written.
            MessageError: a message can not be dealt with; nothing is written.
            ExpectedVersionError, MessageIdConflictError: as for `run`.
            PositionLostError: another process has taken over; nothing is written.
        """
        self._effects.order(positions, {one.global_position: one.entity for one in letters})
        try:
            return self._settle(positions, letters, careful)
        except BaseException:
            self._effects.forget()
            raise

    def bury_again(
        self, positions: Positions, letter: DueLetter, failure: Failure, attempts: int
    ) -> RetryOutcome:
        """Have a letter dead again, which failed again.

        Raises:
            LettersChanged: it is not to be retried any more; nothing is written.
            PositionLostError: another process has taken over; nothing is written.
        """
        with translated(), self._connection.transaction():
            positions.hold(self._connection, {letter.partition})
            self._dead_letters.bury_again(
                self._connection, letter, failure, entity=letter.entity, attempts=attempts
            )
        message = letter.message
        known = [] if message is None else [Letter(message, letter.entity, failure, attempts)]
        return RetryOutcome(died=True, letters=known)

    def _settle(
        self, positions: Positions, letters: Sequence[DueLetter], careful: bool
    ) -> RetryOutcome:
        messages = [_stored(letter) for letter in letters]
        with transaction(self._connection, lambda: messages):
            store = self._effects.store(careful)
            decisions = self._effects.decide(
                store, messages, [None] * len(messages), careful, ALL_OR_NOTHING
            )

            def carry_out() -> None:
                store.lock_categories(decisions.categories)
                self._effects.carry_out(store, decisions, messages, careful)

            def finish() -> RetryOutcome:
                return self._finish(positions, letters, carry_out, decisions)

            if decisions.pending is None:
                return finish()
        with transaction(self._connection, lambda: messages):  # now that the states are committed
            return finish()

    def _finish(
        self,
        positions: Positions,
        letters: Sequence[DueLetter],
        carry_out: Callable[[], None],
        decisions: Decisions,
    ) -> RetryOutcome:
        """Write what was decided on letters, and what they are now."""
        connection, dead_letters = self._connection, self._dead_letters
        positions.hold(connection, {letter.partition for letter in letters})
        dead_letters.settle(connection, letters)
        carry_out()
        conflicts = {one.message.global_position: one for one in decisions.letters}
        for letter in letters:
            found = conflicts.get(letter.global_position)
            if found is not None:
                dead_letters.bury_again(connection, letter, found.failure, entity=None, attempts=1)
        entities = {letter.entity for letter in letters if letter.entity is not None}
        blocked = dead_letters.call_next(connection, entities)
        self._effects.at_hand = ()
        return RetryOutcome(
            handled=len(letters) - len(conflicts),
            conflicts=decisions.conflicts,
            freed=entities - blocked,
        )


def _stored(letter: DueLetter) -> StoredMessage:
    if letter.message is None:
        raise DecodeError(f"{letter.told} is in the store no more; discard its dead letter")
    return letter.message
