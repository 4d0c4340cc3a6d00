"""Reserving few commands in one round trip, where no code of the component is needed for any.

The server takes the key of most commands. Where it takes that of each command in a batch, all that
is left to do is known before the batch is read: reserve them, move the position, commit. A consumer
that waits for commands has few to read, and each round trip is in their way.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from consumers.batch.reading import BatchReading, Opening, ReadBatch
from consumers.decisions.blocking import FailurePolicy
from consumers.group.positions import LONGEST_PAUSE, Positions
from consumers.handling.decoding import SURELY_FITS
from consumers.handling.transaction_needs import TransactionNeeds
from consumers.runtime.context import ConsumerContext
from reservation.idempotence.server_keys import Commands
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import translated
from reservation.postgres.exchange import Beginning, KeepingConnection, Request, run_transaction
from reservation.postgres.queries import load_queries
from reservation.store.partition import Partition
from reservation.tracing import current_tracing

_QUERIES = load_queries("consumers.batch")

# Commands that were read, and for each the outcome; None if they are not reserved.
Outcomes = tuple[Commands, Sequence[str | None]]

# So many commands are reserved at once. Of more, too much is done again where one is in conflict.
MOST = 100


class ReservingNext:
    """How one consumer reserves its next commands in one round trip."""

    def __init__(
        self, context: ConsumerContext, reading: BatchReading, needs: TransactionNeeds
    ) -> None:
        """Prepare.

        Args:
            context: the consumer.
            reading: what reads its batches.
            needs: what transactions the messages need.
        """
        self._context = context
        self._reading = reading
        self._volatile = json.dumps(context.component.volatile("reserve"), ensure_ascii=False)
        self._is_possible = reading.rules != "[]" and not needs.own and not needs.two_phase
        self._fitted = True

    def fits(self, positions: Positions, part: Partition, policy: FailurePolicy) -> bool:
        """Return whether the next commands may be reserved without a look at them.

        They are likely to be few, and of the types whose keys the server takes, if the last were.

        Args:
            positions: what is held of the category.
            part: what is to be read.
            policy: what becomes of messages that cannot be handled.
        """
        return (
            self._is_possible
            and self._fitted
            and part == Partition(part.after)  # the whole category, in its order
            and not (policy.blocked or policy.given_up)
            and current_tracing() is None
            and self._reading.is_never_corrected(positions, part)
        )

    def opening(
        self, connection: KeepingConnection, positions: Positions, part: Partition, size: int
    ) -> Opening[Outcomes]:
        """Return what reads commands, reserves them if they are few and have keys, and commits.

        Args:
            connection: that of the consumer.
            positions: what is held of the category.
            part: what is to be read.
            size: how many commands to read at most.
        """
        request = self.request(positions, part, size)
        return Opening(part, size, Beginning(connection, [request], commits=True), _outcomes)

    def request(self, positions: Positions, part: Partition, size: int) -> Request:
        """Return the statement that `opening` sends; see there."""
        partitions, epochs = positions.held_of(part)
        values = {
            "consumer": positions.consumer,
            "category": positions.category,
            "partitions": partitions,
            "epochs": epochs,
            "after": part.after,
            "batch_size": size,
            "rules": self._reading.rules,
            "volatile": self._volatile,
            "max_bytes": self._reading.batch_bytes,
            "most": MOST,
            "longest_name": SURELY_FITS,
            "longest_pause": LONGEST_PAUSE,
        }
        return Request(_QUERIES["reserve_next"], values)

    def run(self, opening: Opening[Outcomes]) -> "Reserved | Commands | None":
        """Send what `opening` returned, unless that was done, and take the answer.

        Returns:
            What was reserved, which is committed; the commands alone, if they are to be decided
            on; None if a position has not moved, or a command is in conflict or refused, which
            handling them as usual will tell.

        Raises:
            StoreError: the database is away, or another transaction was in the way.
        """
        with translated():
            answers = run_transaction(opening.beginning)
        if answers is None:
            return None
        commands, outcomes = opening.read(answers[0].rows)
        if None in outcomes:
            return commands
        batch = self._reading.batch_of(opening.part, commands, opening.size)
        return Reserved(batch, Counter(outcome for outcome in outcomes if outcome is not None))

    def was_read(self, batch: ReadBatch) -> None:
        """Note what the last batch had that was decided on."""
        self._fitted = len(batch.messages) <= MOST and None not in batch.key_streams


@dataclass(frozen=True, slots=True)
class Reserved:
    """Commands that were reserved.

    Attributes:
        batch: the commands; none at the end of the category.
        counts: how many were reserved, and how many are duplicates.
    """

    batch: ReadBatch
    counts: Counter[str]


def _outcomes(rows: Sequence[tuple[Any, ...]]) -> Outcomes:
    messages = [StoredMessage(*row[:-2]) for row in rows]
    return (messages, [row[-2] for row in rows]), [row[-1] for row in rows]
