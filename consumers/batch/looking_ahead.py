"""Deciding on the next batch while the server writes the last one.

Where there is more to handle, the next batch is read before the one that was decided on is written.
That one is sent, with its commit and a read of what comes after the next, and the answers are taken
only once the handlers of the next batch have been called. So both work at the same time, and no
lock is held longer than without: what is sent commits by itself.

What was decided ahead is committed by the next transaction. It is forgotten where it does not fit:
the last batch was not committed, or a handler raised. The handlers are called once more then, as
after a crash. (The idea is that of instruction pipelines, which execute speculatively.)
"""

import time
from dataclasses import dataclass

from consumers.batch.reading import BatchReading, ReadBatch
from consumers.decisions.blocking import FailurePolicy
from consumers.decisions.decisions import Decisions
from consumers.group.positions import Positions
from consumers.handling.handling import Handling, Prepared
from consumers.runtime.observability.logs import Log
from reservation.effects.faults import is_interrupt
from reservation.errors import MessageError, ReservationError, SerializationError
from reservation.idempotence.server_keys import Commands
from reservation.postgres.exchange.exchange import Sent
from reservation.postgres.exchange.request import Answer, Request
from reservation.raised import describe
from reservation.store.client import MessageStore
from reservation.store.partition import Partition
from reservation.store.statements import Statement

# Of two batches the entities have to be kept.
MOST = 5000

# Seconds that quick handlers take for a batch. What is read meanwhile waits for them, and the
# server keeps its snapshot until then.
QUICK = 1.0


@dataclass(frozen=True, slots=True)
class DecidedBatch:
    """A batch that was decided on ahead.

    Attributes:
        batch: its messages.
        decisions: what is to be written for them.
    """

    batch: ReadBatch
    decisions: Decisions


class LookingAhead:
    """How one consumer decides ahead."""

    def __init__(self, handling: Handling, reading: BatchReading, log: Log) -> None:
        self._log = log
        self._handling = handling
        self._reading = reading
        self._decided: DecidedBatch | None = None
        self._asked: tuple[Partition, int, Statement[Commands]] | None = None
        self._read: tuple[Partition, int, Commands] | None = None
        self._was_disturbed = False
        self._is_quick = False

    @property
    def has_decided(self) -> bool:
        """Whether there is a batch that was decided on and is not committed."""
        return self._decided is not None

    def take(self, part: Partition, limit: int, policy: FailurePolicy) -> DecidedBatch | None:
        """Return the batch that was decided on, to be committed now; None if none fits."""
        decided, self._decided = self._decided, None
        if decided is None:
            self._read = None
            return None
        batch = decided.batch
        if batch.part == part and len(batch.messages) <= limit and not _sets_aside(policy):
            return decided
        self._read = None
        self._handling.roll_back()
        return None

    def drop(self) -> None:
        """Forget what was read and decided ahead; the entities have to go back, too."""
        self._decided = self._read = None

    def may_follow(self, batch: ReadBatch, size: int, policy: FailurePolicy) -> bool:
        """Return whether the batch after one may be decided on ahead."""
        return (
            len(batch.messages) == size <= MOST
            and batch.part == Partition(batch.part.after)  # the whole category, in its order
            and not _sets_aside(policy)
            and not self._was_disturbed
            and self._handling.is_apart
        )

    def read(
        self,
        store: MessageStore,
        positions: Positions,
        batch: ReadBatch,
        size: int,
        policy: FailurePolicy,
    ) -> "NextBatch | None":
        """Return the batch after one, with all that is needed to decide on it; None if it fails."""
        part = Partition(batch.to)
        known, self._read = self._read, None
        if known is not None and known[:2] == (part, size):
            commands = known[2]
        else:
            commands = self._reading.read(part, size)
        if self._reading.may_be_corrected(commands):
            return None
        following = self._reading.batch(positions, part, commands, size)
        if not following.messages:
            return NextBatch(following, None)
        try:
            return NextBatch(
                following,
                self._handling.prepare(store, following.messages, following.key_streams, policy),
            )
        except MessageError as error:
            if not self._handling.is_sound:  # so the batch before could not be written
                self._was_disturbed = True
                raise SerializationError("The next batch could not be read") from error
            return None  # it will be found again

    def after(self, following: "NextBatch", size: int) -> Request | None:
        """Return what reads the batch after the next one, if that is worth it."""
        self._asked = None
        if len(following.batch.messages) < size or not self._is_quick:
            return None
        part = Partition(following.batch.to)
        statement = self._reading.statement(part, size)
        self._asked = part, size, statement
        return statement.request

    def keep(self, answer: Answer | None) -> None:
        """Keep what was read so, for the next call of `read`."""
        if answer is not None and self._asked is not None:
            part, size, statement = self._asked
            self._read = part, size, statement.read(answer.rows)

    def decide(self, following: "NextBatch", sent: Sent) -> None:
        """Decide on a batch, while the server works on what was sent."""
        if following.prepared is None:
            return
        before, began = self._handling.at_hand, time.monotonic()
        try:
            decisions = self._handling.decide(following.prepared, sent.receive)
        except BaseException as error:
            if is_interrupt(error):
                raise
            # The next attempt may succeed, so this is the only word of what was raised.
            text = str(error) if isinstance(error, ReservationError) else describe(error)
            self._log.warning("batch_failed", position=following.batch.part.after, error=text)
            self._handling.roll_back()
        else:
            self._was_disturbed = sent.was_disturbed
            if self._was_disturbed:
                self._handling.forget()
            else:
                self._decided = DecidedBatch(following.batch, decisions)
        self._handling.at_hand = before
        self._is_quick = time.monotonic() - began < QUICK


@dataclass(frozen=True, slots=True)
class NextBatch:
    """A batch to be decided on ahead.

    Attributes:
        batch: its messages; none at the end of the category.
        prepared: them, decoded, with their entities; None at the end of the category.
    """

    batch: ReadBatch
    prepared: Prepared | None


def _sets_aside(policy: FailurePolicy) -> bool:
    """Return whether messages are set aside already, so that it counts what becomes of others."""
    return bool(policy.blocked or policy.given_up)
