"""Reserving a batch in one round trip, where no code of the component is needed for any command.

The server takes the key of most commands. Where it takes that of each command in a batch, all that
is left to do is known before the batch is read: reserve them, move the position, commit. So nothing
of the commands is transferred, and each waits for one round trip only.
"""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from consumers.batch.reading import BatchReading, Opening, ReadBatch
from consumers.decisions.blocking import FailurePolicy
from consumers.group.positions import LONGEST_PAUSE, Positions
from consumers.handling.decoding import SURELY_FITS
from consumers.runtime.context import ConsumerContext
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.idempotence.server_keys import Commands
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import translated
from reservation.postgres.exchange.exchange import Beginning
from reservation.postgres.exchange.keeping_connection import KeepingConnection
from reservation.postgres.exchange.request import Request
from reservation.postgres.exchange.transaction import run_transaction
from reservation.postgres.queries import load_queries
from reservation.store.partition import Partition
from reservation.tracing import current_tracing

_QUERIES = load_queries("consumers.batch")

# A batch with a conflict is done twice. After one, a batch for each so many of its commands is
# decided on before the next is reserved without a look at it: of large batches, few are done twice.
_FEW = 100


@dataclass(frozen=True, slots=True)
class Reserved:
    """Commands that were reserved.

    Attributes:
        to: the global position of the last of them; where reading began, if there were none.
        read: how many there are; none at the end of the category.
        counts: how many were reserved, and how many are duplicates.
        ended: whether the category is known to have had nothing after them.
    """

    to: int
    read: int
    counts: Counter[str]
    ended: bool


class ReservingNext:
    """How one consumer reserves its next commands in one round trip."""

    def __init__(
        self, context: ConsumerContext, reading: BatchReading, own: Collection[str]
    ) -> None:
        self._context = context
        self._reading = reading
        self._volatile = json.dumps(
            declarations(context.component).ignoring(Role.RESERVE), ensure_ascii=False
        )
        self._is_possible = reading.rules != "[]" and not own
        self._fitted = True
        self._was_refused = False
        self._waits = 0  # batches that are decided on before

    def fits(self, positions: Positions, part: Partition, policy: FailurePolicy) -> bool:
        """Return whether the next commands may be reserved without a look at them.

        The server is likely to take the key of each if it took those of the last.
        """
        return (
            self._is_possible
            and self._fitted
            and not self._waits
            and part == Partition(part.after)  # the whole category, in its order
            and not (policy.blocked or policy.given_up)
            and current_tracing() is None
            and self._reading.is_never_corrected(positions, part)
        )

    def opening(
        self, connection: KeepingConnection, positions: Positions, part: Partition, size: int
    ) -> Opening[Commands | Reserved]:
        """Return what reads commands, reserves them if the server takes all keys, and commits."""
        request = self.request(positions, part, size)
        beginning = Beginning(connection, [request], commits=True)
        return Opening(part, size, beginning, partial(_read, part, size))

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
            "longest_name": SURELY_FITS,
            "longest_pause": LONGEST_PAUSE,
        }
        return Request(_QUERIES["reserve_next"], values)

    def run(self, opening: Opening[Commands | Reserved]) -> Commands | Reserved | None:
        """Send what `opening` returned, unless that was done, and take the answer."""
        with translated():
            answers = run_transaction(opening.beginning)
        if answers is None:
            self._was_refused = True
            return None
        return opening.read(answers[0].rows)

    def was_read(self, batch: ReadBatch) -> None:
        """Note what the last batch had that was decided on."""
        streams = batch.key_streams
        self._fitted = all(name is not None and len(name) <= SURELY_FITS for name in streams)
        if self._was_refused:
            self._was_refused, self._waits = False, len(batch.messages) // _FEW
        elif self._waits:
            self._waits -= 1


def _read(part: Partition, size: int, rows: Sequence[tuple[Any, ...]]) -> Commands | Reserved:
    """Return what was reserved, or what is to be decided on."""
    if not rows:
        return Reserved(part.after, 0, Counter(), ended=True)
    to, read, duplicates = (rows[0][n] for n in (4, -2, -1))
    if read is None:
        return [StoredMessage(*row[:-3]) for row in rows], [row[-3] for row in rows]
    counts = Counter(reserved=read - duplicates, duplicate=duplicates)
    return Reserved(to, read, +counts, ended=read < size)
