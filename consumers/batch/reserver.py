"""Reserving commands in the server: one call reads, copies, moves the position and commits.

If the server can tell the key of every command of a batch, it reserves them without code of the
component, and none is transferred. Otherwise it returns the commands, and the handler goes on with
them.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from consumers.batch.reading import BatchReading
from consumers.effects.blocking import FailurePolicy
from consumers.group.positions import LONGEST_PAUSE, HeldPartitions
from consumers.handling.decoding import SURELY_FITS
from consumers.runtime.context import ConsumerContext
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.idempotence.server_keys import Commands
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import translated
from reservation.postgres.exchange.keeping_connection import keeps_statements
from reservation.postgres.exchange.request import Request
from reservation.postgres.exchange.transaction import run_transaction
from reservation.postgres.queries import load_queries
from reservation.store.category_part import CategoryPart
from reservation.tracing import current_tracing

_QUERIES = load_queries("consumers.batch")


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


class Reserver:
    """Reserves the next commands of one consumer without reading them."""

    def __init__(self, context: ConsumerContext, reading: BatchReading) -> None:
        self._context = context
        self._reading = reading
        ignoring = declarations(context.component).ignoring(Role.RESERVE)
        self._ignoring = json.dumps(ignoring, ensure_ascii=False)

    def can_reserve(
        self, positions: HeldPartitions, part: CategoryPart, policy: FailurePolicy
    ) -> bool:
        """Return whether the next commands' keys alone decide their outcomes."""
        return (
            self._reading.rules != "[]"
            and part == CategoryPart(part.after)  # the whole category, in its order
            and not policy.sets_aside
            and current_tracing() is None
            and self._reading.is_never_corrected(positions, part)
        )

    def run(
        self, positions: HeldPartitions, part: CategoryPart, size: int
    ) -> Reserved | Commands | None:
        """Reserve the next commands, or return them; None if the transaction was refused."""
        connection = self._context.connection
        if not keeps_statements(connection):
            return None
        with translated():
            answers = run_transaction(connection, [self.request(positions, part, size)])
        return None if answers is None else _read(part, size, answers[0].rows)

    def request(self, positions: HeldPartitions, part: CategoryPart, size: int) -> Request:
        """Return the call that reserves in the server."""
        partitions, epochs = positions.claims_of(part)
        values = {
            "consumer": positions.consumer,
            "category": positions.category,
            "partitions": partitions,
            "epochs": epochs,
            "after": part.after,
            "batch_size": size,
            "rules": self._reading.rules,
            "ignoring": self._ignoring,
            "max_bytes": self._context.options.batch_bytes,
            "longest_name": SURELY_FITS,
            "longest_pause": LONGEST_PAUSE,
        }
        return Request(_QUERIES["reserve_next"], values)


def _read(part: CategoryPart, size: int, rows: Sequence[tuple[Any, ...]]) -> Commands | Reserved:
    """Return what was reserved, or the commands to handle."""
    if not rows:
        return Reserved(part.after, 0, Counter(), ended=True)
    to, read, duplicates = (rows[0][n] for n in (4, -2, -1))
    if read is None:
        return [StoredMessage(*row[:-3]) for row in rows], [row[-3] for row in rows]
    counts = Counter(reserved=read - duplicates, duplicate=duplicates)
    return Reserved(to, read, +counts, ended=read < size)
