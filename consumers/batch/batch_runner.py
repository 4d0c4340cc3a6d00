"""One batch, one transaction: read, decide, write, move the position, commit.

A crash at any point leaves nothing behind, and the batch is read again. Commands are reserved in
the server where that is possible (`consumers.batch.reserver`), and handled here otherwise
(`consumers.batch.batch_handling`).
"""

from collections.abc import Callable, Iterator, Sequence

from consumers.batch.ahead import NextBatch
from consumers.batch.batch_handling import BatchHandling, BatchResult
from consumers.batch.effects_writer import EffectsWriter
from consumers.batch.letter_transaction import RetryTransaction
from consumers.batch.reading import BatchReading
from consumers.batch.reserver import Reserved, Reserver
from consumers.calls.blame import before
from consumers.dead_letters.corrections import Corrections
from consumers.effects.blocking import ALL_OR_NOTHING, FailurePolicy
from consumers.failures.letters import DeadLetters
from consumers.group.positions import HeldPartitions, NotMovedError
from consumers.handling.handling import Handling
from consumers.limits.limits import Limits
from consumers.runtime.context import ConsumerContext
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.errors import MessageError
from reservation.idempotence.server_keys import Commands
from reservation.messages.message import StoredMessage
from reservation.store.category_part import CategoryPart


def _never() -> bool:
    """Return False: by default a run is one batch."""
    return False


class BatchRunner:
    """Takes one consumer's category forward by a batch.

    Attributes:
        retry_transaction: how it handles letters again.
    """

    def __init__(self, context: ConsumerContext, limits: Limits | None = None) -> None:
        declared = declarations(context.component)
        snapshots = declared.snapshots(context.connection)
        ignoring = declared.ignoring(Role.INITIATE) | declared.ignoring(Role.RESERVE)
        corrections = Corrections(
            context.component.name, context.category, ignoring if context.reserves else {}
        )
        writer = EffectsWriter(context, snapshots)
        letters = DeadLetters(context.component.name, context.category)
        self._context = context
        self._handling = Handling(context, snapshots, corrections, limits)
        self._reading = BatchReading(context, corrections)
        self._reserver = Reserver(context, self._reading)
        self._batch_handling = BatchHandling(
            context, self._reading, self._handling, writer, letters
        )
        self.retry_transaction = RetryTransaction(context, self._handling, writer, letters)

    def run(
        self,
        positions: HeldPartitions,
        limit: int,
        *,
        recheck: bool = False,
        policy: FailurePolicy = ALL_OR_NOTHING,
        may_continue: Callable[[], bool] = _never,
    ) -> Iterator[BatchResult]:
        """Handle up to ``limit`` messages of the category, and more while ``may_continue``.

        With a recheck, its categories are locked first, and messages that were handled before are
        skipped. The result of each transaction is yielded once it is committed.
        """
        part = self._reading.part(positions)
        if part is None:
            yield BatchResult(None, 0)
            return
        in_flight, spans = self._context.in_flight, self._context.spans
        in_flight.reads(part.after, limit)
        size = self._reading.size.limit(limit)
        result: BatchResult | None
        try:
            with spans.batch():
                result, following = self._first_batch(
                    positions, part, size, policy, recheck=recheck, may_continue=may_continue()
                )
            in_flight.committed()
            yield result
            while following is not None:
                result, following = self._batch_handling.commit_ahead(
                    positions, following, size, may_continue=may_continue()
                )
                in_flight.committed()
                if result is not None:
                    yield result
        except NotMovedError:
            raise positions.lost(self._context.connection) from None

    def _first_batch(
        self,
        positions: HeldPartitions,
        part: CategoryPart,
        size: int,
        policy: FailurePolicy,
        *,
        recheck: bool,
        may_continue: bool,
    ) -> tuple[BatchResult, NextBatch | None]:
        """Reserve the next commands in the server if that is possible, else handle the batch."""
        commands: Commands | None = None
        if (archived := self._reading.archived(part, size)) is not None:
            part, commands = archived
        elif not recheck and self._reserver.can_reserve(positions, part, policy):
            reserved = self._reserver.run(positions, part, size)
            if isinstance(reserved, Reserved):
                return self._committed(positions, part, reserved), None
            commands = reserved
        return self._batch_handling.handle(
            positions,
            part,
            size,
            policy,
            recheck=recheck,
            commands=commands,
            may_continue=may_continue,
        )

    def _committed(
        self, positions: HeldPartitions, part: CategoryPart, reserved: Reserved
    ) -> BatchResult:
        """Note that commands are reserved and committed; return the outcome."""
        positions.committed(part, reserved.to)
        if reserved.read:
            self._reading.size.used_all()
        return BatchResult(part, reserved.to, reserved.read, reserved.counts, ended=reserved.ended)

    @property
    def uncommitted(self) -> Sequence[StoredMessage]:
        """The messages of the last batch, if it was not committed."""
        return self._handling.uncommitted

    def before(self, error: MessageError) -> int | None:
        """Return how many messages of the last batch come before the one with which it failed.

        None if the error does not name that message.
        """
        return before(self.uncommitted, error.global_position)

    def first(self, positions: HeldPartitions) -> StoredMessage | None:
        """Return the first message of the next batch; None at the end of the category."""
        return self._reading.first(positions)
