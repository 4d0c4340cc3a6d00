"""Handling letters again: their effects and their new states are written in one transaction."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from consumers.batch.effects import BatchEffects
from consumers.calls.blame import transaction
from consumers.dead_letters.corrections import with_data
from consumers.dead_letters.failure import Failure, Letter
from consumers.dead_letters.letters import DeadLetters, DueLetter, FailedLetter
from consumers.decisions.blocking import FailurePolicy
from consumers.decisions.decisions import Decisions
from consumers.group.positions import Positions
from consumers.handling.handling import Handling
from consumers.runtime.context import ConsumerContext
from reservation.errors import DecodeError
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import translated
from reservation.store.client import MessageStore


@dataclass(frozen=True, slots=True)
class RetryOutcome:
    """What became of letters that were handled again.

    Attributes:
        handled: how many of them are handled now.
        dead: how many are dead again.
        waiting: how many wait for another attempt.
        conflicts: the commands found in conflict, and the stream of their key.
        letters: those that are dead again or wait, and whose message is known.
        tried: attempts that failed and were followed by others.
        entities: whose lines the letters are in.
        freed: those of them that no longer have open letters.
    """

    handled: int = 0
    dead: int = 0
    waiting: int = 0
    conflicts: Sequence[tuple[StoredMessage, str]] = ()
    letters: Sequence[Letter] = ()
    tried: Sequence[Letter] = ()
    entities: Collection[str] = ()
    freed: Collection[str] = ()

    @property
    def failed(self) -> bool:
        """Whether a letter is dead again or waits."""
        return bool(self.dead or self.waiting)


class RetryTransaction:
    """How one consumer handles letters of its category again."""

    def __init__(
        self,
        context: ConsumerContext,
        handling: Handling,
        effects: BatchEffects,
        dead_letters: DeadLetters,
    ) -> None:
        self._connection = context.connection
        self._spans = context.spans
        self._handling = handling
        self._effects = effects
        self._dead_letters = dead_letters

    def can_share(self, letters: Sequence[DueLetter]) -> bool:
        """Return whether letters can share one transaction: none needs its own."""
        types = {letter.message.type for letter in letters if letter.message is not None}
        return types.isdisjoint(self._handling.own)

    def run(
        self, positions: Positions, letters: Sequence[DueLetter], *, careful: bool = False
    ) -> RetryOutcome:
        """Handle letters again, all of them or none."""
        self._handling.order(
            positions, {letter.global_position: letter.entity for letter in letters}
        )
        tried = {letter.global_position: letter.attempts for letter in letters}
        with self._handling.attempt(), self._spans.batch(tried):
            return self._run(positions, letters, careful)

    def bury_again(
        self, positions: Positions, letter: DueLetter, failure: Failure, attempts: int
    ) -> RetryOutcome:
        """Mark a letter dead again, or waiting for another attempt, after another failure."""
        with translated(), self._connection.transaction():
            positions.hold(self._connection, {letter.partition})
            failed = FailedLetter(letter, failure, letter.entity, attempts)
            self._dead_letters.bury_again(self._connection, [failed])
        message, waits = letter.message, failure.wait is not None
        known = [] if message is None else [Letter(message, letter.entity, failure, attempts)]
        return RetryOutcome(dead=not waits, waiting=waits, letters=known)

    def _run(
        self, positions: Positions, letters: Sequence[DueLetter], careful: bool
    ) -> RetryOutcome:
        messages = [_to_handle(letter) for letter in letters]
        with transaction(self._connection, lambda: messages):
            store = MessageStore(self._connection)
            if careful:
                store.lock_categories(self._handling.categories)
            as_sent = {
                letter.global_position: letter.message
                for letter in letters
                if letter.data is not None and letter.message is not None
            }
            decisions = self._handling.plan(
                store,
                messages,
                [None] * len(messages),
                as_sent,
                careful=careful,
                policy=FailurePolicy(
                    stop=True, again={letter.global_position: letter.attempts for letter in letters}
                ),
            )
            write_effects = partial(
                self._effects.apply, store, decisions, messages, careful=careful
            )
            return self._finish(positions, letters, write_effects, decisions)

    def _finish(
        self,
        positions: Positions,
        letters: Sequence[DueLetter],
        write_effects: Callable[[], None],
        decisions: Decisions,
    ) -> RetryOutcome:
        """Write the effects of letters, and their new states."""
        connection, dead_letters = self._connection, self._dead_letters
        positions.hold(connection, {letter.partition for letter in letters})
        aside = {letter.message.global_position: letter for letter in decisions.letters}
        handled = [letter for letter in letters if letter.global_position not in aside]
        dead_letters.mark_handled(connection, handled)
        write_effects()
        found = {letter.message.global_position: letter for letter in decisions.letters}
        failed = []
        for letter in letters:
            position = letter.global_position
            if position in found and not found[position].parked:
                one = found[position]
                # Nothing waits behind a conflict, which only the writing has found.
                entity = letter.entity if position in aside else None
                failed.append(FailedLetter(letter, one.failure, entity, one.attempts))
        if failed:
            dead_letters.bury_again(connection, failed)
        entities = {letter.entity for letter in letters if letter.entity is not None}
        blocked = dead_letters.call_next(connection, entities)
        self._handling.at_hand = ()
        again = [letter for letter in aside.values() if not letter.parked]
        waiting = sum(letter.waits for letter in again)
        return RetryOutcome(
            handled=len(letters) - len(found),
            dead=len(again) - waiting,
            waiting=waiting,
            conflicts=decisions.conflicts,
            letters=again,
            tried=decisions.tried,
            entities=entities,
            freed=entities - blocked,
        )


def _to_handle(letter: DueLetter) -> StoredMessage:
    """Return the message of a letter, with the data that the letter was given."""
    if letter.message is None:
        raise DecodeError(f"{letter.described} is no longer in the store; discard its dead letter")
    return letter.message if letter.data is None else with_data(letter.message, letter.data)
