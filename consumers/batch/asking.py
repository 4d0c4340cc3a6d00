"""Asking for the next batch as soon as there is notice of messages, before anything else.

A consumer that waits for messages knows what it is going to ask. So that is made ready before the
wait, and sent when the wait ends: the server works on it while the consumer gets to run the batch.
"""

from consumers.batch.reading import MOST_ENTITIES, BatchReading, Opening, ReadBatch, WithEvents
from consumers.batch.reserving_next import Reserved, ReservingNext
from consumers.decisions.blocking import FailurePolicy
from consumers.group.positions import Positions
from consumers.runtime.context import ConsumerContext
from reservation.idempotence.server_keys import Commands
from reservation.postgres.error_translation import translated
from reservation.postgres.exchange.exchange import Beginning
from reservation.postgres.exchange.keeping_connection import keeps_statements


class Asking:
    """How one consumer asks for its next batch.

    Attributes:
        was_small: whether the last batch had few messages, so that the next one is likely to.
    """

    def __init__(
        self, context: ConsumerContext, reading: BatchReading, reserving_next: ReservingNext
    ) -> None:
        self._context = context
        self._reading = reading
        self._reserving_next = reserving_next
        self._opening: Opening[WithEvents] | None = None
        self._reserving: Opening[Commands | Reserved] | None = None
        self.was_small = True

    @property
    def is_asked(self) -> bool:
        """Whether the next batch was asked for, and the answer is to be taken."""
        opening = self._opening or self._reserving
        return opening is not None and opening.beginning.is_sent

    def get_ready(self, positions: Positions, limit: int, policy: FailurePolicy) -> None:
        """Prepare what the next batch begins with, if all of the category is held."""
        connection, part = self._context.connection, positions.next()
        self._opening = self._reserving = None
        if part is None or part.partitions is not None or not keeps_statements(connection):
            return
        size = self._reading.size.limit(limit)
        if self._reserving_next.fits(positions, part, policy):
            self._reserving = self._reserving_next.opening(connection, positions, part, size)
            return
        statement = self._reading.statement_to_decide(part, size, with_events=self.was_small)
        beginning = Beginning(connection, [statement.request])
        self._opening = Opening(part, size, beginning, statement.read)

    def ask(self) -> None:
        """Send what was prepared, if anything was."""
        opening = self._opening or self._reserving
        if opening is not None:
            with translated():
                opening.beginning.send()

    def take(self) -> tuple[Opening[WithEvents] | None, Opening[Commands | Reserved] | None]:
        """Return what was prepared, and may have been sent: to read a batch, or to reserve it."""
        opening, reserving = self._opening, self._reserving
        self._opening = self._reserving = None
        return opening, reserving

    def was_read(self, batch: ReadBatch) -> None:
        """Note what the last batch had that was decided on."""
        self.was_small = len(batch.messages) <= MOST_ENTITIES
        self._reserving_next.was_read(batch)
