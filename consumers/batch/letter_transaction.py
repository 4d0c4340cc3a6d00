"""Handling letters that are due: one transaction writes their effects and their new states."""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from consumers.batch.effects_writer import EffectsWriter
from consumers.calls.blame import transaction
from consumers.dead_letters.corrections import with_data
from consumers.effects.blocking import FailurePolicy
from consumers.effects.effects import Effects
from consumers.failures.failure import Failure, Reason, Unhandled
from consumers.failures.letters import DeadLetters, DueLetter
from consumers.group.positions import HeldPartitions
from consumers.handling.handling import Handling
from consumers.runtime.context import ConsumerContext
from reservation.declaration.table import declarations
from reservation.messages.message import StoredMessage
from reservation.store.client import MessageStore


@dataclass(frozen=True, slots=True)
class RetryResult:
    """The outcome of letters that were due.

    Attributes:
        positions: the global positions of all of them.
        letters: those that were not handled.
        handled: how many were.
        counts: how many of all had which outcome, as for a batch.
        conflicts: the commands found in conflict, and the stream of their key.
        freed: the entities of these letters that no longer have open ones.
    """

    positions: Collection[int] = ()
    letters: Sequence[Unhandled] = ()
    handled: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    conflicts: Sequence[tuple[StoredMessage, str]] = ()
    freed: Set[str] = frozenset()


class RetryTransaction:
    """Handles the due letters of one consumer's category."""

    def __init__(
        self,
        context: ConsumerContext,
        handling: Handling,
        writer: EffectsWriter,
        dead_letters: DeadLetters,
    ) -> None:
        self._connection, self._archived = context.connection, context.archived
        self._is_model = declarations(context.component).model is not None
        self._spans = context.spans
        self._handling = handling
        self._writer = writer
        self._dead_letters = dead_letters

    def run(
        self,
        positions: HeldPartitions,
        letters: Sequence[DueLetter],
        tried: Mapping[int, int],
        failed: Mapping[int, Failure],
        *,
        recheck: bool = False,
    ) -> RetryResult:
        """Handle letters; some were tried before, and the failures of some are known."""
        letters = self._from_archive(letters)
        self._handling.order(
            positions, {letter.global_position: letter.entity for letter in letters}
        )
        missing = {
            letter.global_position: self._missing(letter) for letter in letters if letter.is_missing
        }
        limited = {letter.global_position for letter in letters if letter.is_limited}
        policy = FailurePolicy(failed={**failed, **missing}, tried=tried, limited=limited)
        with self._handling.attempt(), self._spans.batch(tried):
            return self._run(positions, letters, policy, recheck)

    def _run(
        self,
        positions: HeldPartitions,
        letters: Sequence[DueLetter],
        policy: FailurePolicy,
        recheck: bool,
    ) -> RetryResult:
        messages = [_to_handle(letter) for letter in letters]
        with transaction(self._connection, lambda: messages):
            store = MessageStore(self._connection)
            if recheck:
                store.lock_categories(self._handling.categories)
            as_sent = {
                letter.global_position: letter.message
                for letter in letters
                if letter.data is not None
            }
            effects = self._handling.plan(
                messages,
                [None] * len(messages),
                as_sent,
                recheck=recheck,
                policy=policy,
            )
            positions.lock(self._connection, {letter.partition for letter in letters})
            set_aside = {letter.message.global_position for letter in effects.letters}
            handled = [letter for letter in letters if letter.global_position not in set_aside]
            self._dead_letters.mark_handled(self._connection, handled)
            self._writer.write(store, effects, messages, recheck=recheck, commits=False)
            self._fail_again(letters, effects, set_aside)
            entities = {letter.entity for letter in letters if letter.entity is not None}
            heads = self._dead_letters.heads(self._connection, entities)
        self._handling.committed()
        in_conflict = len(effects.letters) - len(set_aside)
        return RetryResult(
            [letter.global_position for letter in letters],
            effects.letters,
            len(handled) - in_conflict,
            effects.counts,
            effects.conflicts,
            entities - heads.keys(),
        )

    def _from_archive(self, letters: Sequence[DueLetter]) -> Sequence[DueLetter]:
        """Return letters with the messages that are only in the archive."""
        wanted = [letter.global_position for letter in letters if letter.is_missing]
        if not wanted or self._archived is None:
            return letters
        found = self._archived.at(wanted)
        read = list[DueLetter]()
        for letter in letters:
            message = found.get(letter.global_position)
            if message is not None and message.id == letter.message.id:
                letter = replace(letter, message=message, is_missing=False)
            read.append(letter)
        return read

    def _missing(self, letter: DueLetter) -> Failure:
        """Return the failure of a letter whose message is no longer in the store."""
        way = "start the read model with --archive, or " if self._is_model else ""
        error = f"{letter.message} is no longer in the store; {way}discard its dead letter"
        return Failure(Reason.UNDECODABLE, error, attempts=letter.attempts + 1)

    def _fail_again(
        self, letters: Sequence[DueLetter], effects: Effects, set_aside: Collection[int]
    ) -> None:
        """Write the new states of those that failed; those that run or are parked stay so."""
        by_position = {letter.global_position: letter for letter in letters}
        failed = []
        for unhandled in effects.letters:
            if unhandled.state != "parked" and not unhandled.runs:
                letter = by_position[unhandled.message.global_position]
                # Nothing waits behind a conflict that was found only when it was written.
                entity = letter.entity if letter.global_position in set_aside else None
                failed.append((letter, entity, unhandled.failure))
        if failed:
            self._dead_letters.fail_again(self._connection, failed)


def _to_handle(letter: DueLetter) -> StoredMessage:
    """Return the message of a letter, with the data that the letter was given."""
    return letter.message if letter.data is None else with_data(letter.message, letter.data)
