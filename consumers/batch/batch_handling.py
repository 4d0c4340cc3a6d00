"""Handling a batch: read, decode, load the entities, decide, write and commit.

Handlers run before anything is written, so the category locks are held only for the writes. The
handlers of the next batch may run while the server writes this one (`consumers.batch.ahead`).
"""

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

from consumers.batch.ahead import DecidingAhead, NextBatch
from consumers.batch.effects_writer import EffectsWriter
from consumers.batch.reading import BatchReading, ReadBatch
from consumers.calls.blame import before, transaction
from consumers.effects.blocking import FailurePolicy
from consumers.effects.effects import Effects
from consumers.failures.failure import Unhandled
from consumers.failures.letters import DeadLetters
from consumers.group.positions import HeldPartitions
from consumers.handling.handling import Handling
from consumers.handling.same_intent import key_fields
from consumers.runtime.context import ConsumerContext
from reservation.declaration.table import declarations
from reservation.idempotence.server_keys import Commands
from reservation.messages.message import StoredMessage
from reservation.postgres.exchange.request import Answer, Request
from reservation.store.category_part import CategoryPart
from reservation.store.client import MessageStore
from reservation.store.statements import lock_categories, run


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The outcome of a batch.

    Attributes:
        part: its part of the category; None if no partition is held.
        to: the global position up to which the messages of this part are handled now.
        read: how many messages it had.
        counts: how many of them were handled, rejected, reserved, duplicates, conflicts, ignored,
            redelivered, differing (redelivered, and handled otherwise), dead or parked.
        conflicts: the commands in conflict with an earlier one, and the stream of their key.
        letters: the messages that were set aside.
        ended: whether the category is known to have had nothing after it when it was read.
        waits: whether nothing was handled, because the first message waits for async calls.
    """

    part: CategoryPart | None
    to: int
    read: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    conflicts: Sequence[tuple[StoredMessage, str]] = ()
    letters: Sequence[Unhandled] = ()
    ended: bool = False
    waits: bool = False

    @property
    def moved(self) -> bool:
        """Whether a position moved; it does not at the end of the category."""
        return self.part is not None and self.to > self.part.after

    @property
    def blocked(self) -> Collection[str]:
        """The entities whose later messages wait behind those that were set aside."""
        return {letter.entity for letter in self.letters if letter.entity is not None}


class BatchHandling:
    """Handles one consumer's category by batches."""

    def __init__(
        self,
        context: ConsumerContext,
        reading: BatchReading,
        handling: Handling,
        writer: EffectsWriter,
        letters: DeadLetters,
    ) -> None:
        self._connection = context.connection
        self._reading = reading
        self._handling = handling
        self._writer = writer
        self._letters = letters
        self._ahead = DecidingAhead(context, reading, handling)
        declared = declarations(context.component).of(context.category)
        self._key_fields = partial(key_fields, declared)

    def handle(
        self,
        positions: HeldPartitions,
        part: CategoryPart,
        size: int,
        policy: FailurePolicy,
        *,
        recheck: bool,
        commands: Commands | None = None,
        may_continue: bool = False,
    ) -> tuple[BatchResult, NextBatch | None]:
        """Handle the next messages of a part, which may have been read already.

        If it may continue, the next batch is returned too, if it was read ahead.
        """
        handling, reading = self._handling, self._reading.statement_to_decide(part, size)
        handling.order(positions)
        requests = [] if commands is not None else [reading.request]
        if recheck:
            requests.insert(0, lock_categories(handling.categories).request)
        if handling.checks_open_letters:
            requests.append(self._letters.has_open)
        with handling.attempt(), self._transaction(requests) as answers:
            if handling.checks_open_letters:
                ((has_open,),) = answers.pop().rows
                policy = replace(policy, blocked=set(), looks=has_open)
            read, events = reading.read(answers[-1].rows) if commands is None else (commands, {})
            batch = self._reading.batch(positions, part, read, size)
            if batch.to == part.after:
                return BatchResult(part, batch.to), None
            effects = handling.plan(
                batch.messages,
                batch.key_streams,
                batch.as_sent,
                recheck=recheck,
                policy=policy,
                events=events,
            )
            ends_before = effects.ends_before
            if ends_before is not None and ends_before is batch.messages[0]:
                return BatchResult(part, part.after, waits=True), None
            batch = self._cut(batch, effects)
            ahead = self._ahead.reading(batch, effects, size, policy) if may_continue else None
            following = None
            if ahead is not None:
                commands = run(self._connection, ahead)
                following = self._ahead.prepare(positions, batch, commands, size, policy)
            self._write(positions, batch, effects, following, recheck=recheck)
        return self._committed(positions, batch, effects, following)

    def commit_ahead(
        self, positions: HeldPartitions, last: NextBatch, size: int, *, may_continue: bool
    ) -> tuple[BatchResult | None, NextBatch | None]:
        """Commit the batch that was decided on ahead; None if none was."""
        with self._handling.attempt():
            self._handling.resume(last.batch.messages, last.effects)
            if last.error is not None:
                raise last.error
            if last.effects is None:
                self._handling.roll_back()
                return None, None
            effects, policy = last.effects, last.policy
            batch = self._cut(last.batch, effects)
            ahead = self._ahead.reading(batch, effects, size, policy) if may_continue else None
            with self._transaction([] if ahead is None else [ahead.request]) as answers:
                following = None
                if ahead is not None:
                    commands = ahead.read(answers[-1].rows)
                    following = self._ahead.prepare(positions, batch, commands, size, policy)
                self._write(positions, batch, effects, following, recheck=False)
        return self._committed(positions, batch, effects, following)

    def _transaction(
        self, requests: Sequence[Request] = ()
    ) -> AbstractContextManager[list[Answer]]:
        return transaction(self._connection, lambda: self._handling.uncommitted, requests)

    def _write(
        self,
        positions: HeldPartitions,
        batch: ReadBatch,
        effects: Effects,
        following: NextBatch | None,
        *,
        recheck: bool,
    ) -> None:
        """Write what was decided, and commit; meanwhile decide on the next batch."""
        self._handling.uncommitted = batch.messages
        decide = None if following is None else partial(self._ahead.decide, following)
        self._writer.write(
            MessageStore(self._connection),
            effects,
            batch.messages,
            [positions.advance(batch.part, batch.to, batch.last)],
            lambda: self._letters.recording(effects.letters, self._key_fields),
            recheck=recheck,
            meanwhile=decide,
        )

    def _committed(
        self,
        positions: HeldPartitions,
        batch: ReadBatch,
        effects: Effects,
        following: NextBatch | None,
    ) -> tuple[BatchResult, NextBatch | None]:
        """Note that a batch is committed; return its outcome, and the batch decided on ahead."""
        positions.committed(batch.part, batch.to)
        self._handling.committed()
        is_last = following is not None and not following.batch.messages
        result = BatchResult(
            batch.part,
            batch.to,
            len(batch.messages),
            effects.counts,
            effects.conflicts,
            effects.letters,
            batch.ended or is_last,
        )
        if following is None or following.prepared is None:
            return result, None
        return result, following

    def _cut(self, batch: ReadBatch, effects: Effects) -> ReadBatch:
        """Return the batch up to where it ends: there is enough to write, or a message waits."""
        if (ends_before := effects.ends_before) is None:
            return batch
        batch = batch.up_to(before(batch.messages, ends_before.global_position) or 0)
        self._reading.size.used(len(batch.messages))
        return batch
