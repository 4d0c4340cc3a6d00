"""Deciding on the next batch while the server writes the last one.

Where there is more to handle, the next batch is read and decoded, and its entities are loaded,
before the one that was decided on is written. While the server writes and commits that one, the
handlers of the next are called. What they decide is committed by the next transaction, so no lock
is held longer than without. If the last batch is not committed, it is forgotten, and the handlers
are called again, as after a crash. (The idea is that of instruction pipelines, which execute
speculatively.)
"""

import time
from dataclasses import dataclass

from psycopg.pq import TransactionStatus

from consumers.batch.reading import BatchReading, ReadBatch
from consumers.calls.lending import ConnectionBusyError
from consumers.effects.blocking import FailurePolicy
from consumers.effects.effects import Effects
from consumers.group.positions import HeldPartitions
from consumers.handling.handling import Handling, PreparedMessages
from consumers.runtime.context import ConsumerContext
from reservation.errors import MessageError, SerializationError
from reservation.idempotence.server_keys import Commands
from reservation.postgres.exchange.keeping_connection import keeps_statements
from reservation.store.category_part import CategoryPart
from reservation.store.statements import Statement

# Entities are kept for at least two batches of so many messages.
MOST = 5000

# Seconds that the handlers of a batch may take for the next one to be decided on ahead: what became
# of the last one is known only afterwards.
QUICK = 0.25


@dataclass(slots=True)
class NextBatch:
    """The batch after the one that is written.

    Attributes:
        batch: its messages.
        policy: what becomes of those that fail.
        prepared: the messages, decoded, with their entities; None if they are not to be decided on
            ahead.
        effects: what was decided on them; None if nothing was, or their handlers cannot be called
            while the connection is used.
        error: what deciding on them raised.
    """

    batch: ReadBatch
    policy: FailurePolicy
    prepared: PreparedMessages | None = None
    effects: Effects | None = None
    error: Exception | None = None


class DecidingAhead:
    """Decides ahead for one consumer."""

    def __init__(self, context: ConsumerContext, reading: BatchReading, handling: Handling) -> None:
        self._connection = context.connection
        self._reading = reading
        self._handling = handling
        self._seconds = 0.0

    def reading(
        self, batch: ReadBatch, effects: Effects, size: int, policy: FailurePolicy
    ) -> Statement[Commands] | None:
        """Return what reads the batch after one; None if it is not to be decided on ahead."""
        follows = (
            len(batch.messages) == size <= MOST
            and batch.part == CategoryPart(batch.part.after)  # the whole category, in its order
            and not (policy.sets_aside or policy.looks)
            and not (effects.letters or effects.reservations or effects.reissued)
            and not self._handling.needs_connection
            and keeps_statements(self._connection)
            and self._seconds < QUICK
        )
        return self._reading.statement(CategoryPart(batch.to), size) if follows else None

    def prepare(
        self,
        positions: HeldPartitions,
        batch: ReadBatch,
        commands: Commands,
        size: int,
        policy: FailurePolicy,
    ) -> NextBatch:
        """Return the batch after one, prepared if all of it can be handled as it is."""
        read = self._reading.batch(positions, CategoryPart(batch.to), commands, size)
        following = NextBatch(read, policy)
        if not read.messages or read.as_sent:
            return following
        try:
            prepared = self._handling.prepare(read.messages, read.key_streams, policy)
        except MessageError as error:
            if self._connection.info.transaction_status is not TransactionStatus.INTRANS:
                self._seconds = QUICK
                raise SerializationError("The next batch could not be read") from error
            return following  # its own attempt finds that again
        if not prepared.effects.letters:
            following.prepared = prepared
        return following

    def decide(self, following: NextBatch) -> None:
        """Decide on a batch, while the server works."""
        if following.prepared is None:
            return
        began = time.monotonic()
        try:
            following.effects = self._handling.decide(following.prepared)
        except ConnectionBusyError:
            self._seconds = QUICK
            return
        except Exception as error:  # noqa: BLE001  raised once the last batch is committed
            following.error = error
        self._seconds = time.monotonic() - began
