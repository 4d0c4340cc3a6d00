"""Making the tables of a version once more, from what its consumers have handled.

Everything is in one transaction: the scratch schema, the rows in it, and the snapshot under which
positions, letters and live rows are read. So the consumers go on meanwhile. Mostly it is never
committed, and nothing is left of a rebuild that is killed (`reservation.read_models.scratch`).
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from psycopg import Connection

from consumers.archived import Archives, read_both
from consumers.dead_letters.corrections import Corrections, with_data
from consumers.effects.blocking import ALL_OR_NOTHING
from consumers.group.inspection.status import groups
from consumers.group.inspection.stored_positions import StoredPosition, reads_of
from consumers.group.positions import HeldPartitions
from consumers.handling.handling import Handling
from consumers.options import DEFAULT_BATCH_BYTES
from consumers.runtime.context import ConsumerContext
from reservation.component import Component
from reservation.declaration.model_version import ModelVersion
from reservation.errors import StoreError, StoreReplacedError
from reservation.messages.message import StoredMessage
from reservation.postgres.queries import load_queries
from reservation.read_models.schemas import enter, make
from reservation.read_models.scratch import scratch_comment, scratch_schema
from reservation.store.category_part import CategoryPart
from reservation.store.statements import read_part, run

_QUERIES = load_queries("consumers.read_models")

BATCH = 1000


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild was made from.

    Attributes:
        schema: the scratch schema.
        messages: how many messages were read.
        left_out: how many of them were left out, because they are dead letters.
        positions: the lowest position of each category.
    """

    schema: str
    messages: int
    left_out: int
    positions: Mapping[str, int]


def rebuild(
    connection: Connection[Any],
    component: Component[Any],
    model: ModelVersion,
    archives: Archives | None = None,
) -> Rebuilt:
    """Make the tables in a scratch schema, up to the positions of the version's consumers.

    Events of all categories are handled in the order of their global positions.
    """
    stored = groups(connection, reads_of(component))
    for rows in stored:
        _check(rows)
    schema = scratch_schema(model)
    make(connection, model, schema, scratch_comment(model))
    enter(connection, schema, locally=True)
    sources = {rows[0].category: _Source(connection, component, rows, archives) for rows in stored}
    merged = heapq.merge(
        *(source.messages() for source in sources.values()),
        key=lambda message: message[1].global_position,
    )
    for category, together in groupby(merged, key=lambda message: message[0]):
        sources[category].handle(message for _, message in together)
    return Rebuilt(
        schema,
        sum(source.read for source in sources.values()),
        sum(source.left_out for source in sources.values()),
        {rows[0].category: min(row.position for row in rows) for rows in stored},
    )


class _Source:
    """One category of the read model: what was handled of it, and how that is handled again."""

    def __init__(
        self,
        connection: Connection[Any],
        component: Component[Any],
        rows: Sequence[StoredPosition],
        archives: Archives | None,
    ) -> None:
        self._connection, self._category, self._rows = connection, rows[0].category, rows
        self._archived = None if archives is None else archives.category(self._category)
        names = {"consumer": component.name, "category": self._category}
        letters = connection.execute(_QUERIES["letters"], names).fetchall()
        self._corrected = {position: data for position, data, handled in letters if handled}
        self._not_handled = {position for position, _, handled in letters if not handled}
        context = ConsumerContext.of(connection, component, self._category)
        self._handling = Handling(context, None, Corrections(component.name, self._category, {}))
        self._handling.order(HeldPartitions(component.name, self._category))
        self.read = self.left_out = 0

    def messages(self) -> Iterator[tuple[str, StoredMessage]]:
        """Give the messages that are handled, in their order, each with the category."""
        for part in self._parts():
            after, until = part.after, part.until or 0
            while after < until:
                after, batch = self._batch(replace(part, after=after), until)
                for message in batch:
                    yield self._category, message

    def _batch(self, part: CategoryPart, until: int) -> tuple[int, Sequence[StoredMessage]]:
        """Read a batch of a part, from archive and store; return up to where, and the messages."""
        most = BATCH, DEFAULT_BATCH_BYTES
        if self._archived is not None and part.after < self._archived.last:
            of = self._archived, self._category, part
            read, batch = read_both(self._connection, *of, *most)
            return read.until or until, batch
        batch = run(self._connection, read_part(self._category, part, *most))
        return batch[-1].global_position if batch else until, batch

    def handle(self, messages: Iterator[StoredMessage]) -> None:
        """Handle messages that follow each other without one of another category in between."""
        batch: list[StoredMessage] = []
        for message in messages:
            self.read += 1
            if message.global_position in self._not_handled:
                self.left_out += 1
                continue
            data = self._corrected.get(message.global_position)
            batch.append(message if data is None else with_data(message, data))
            if len(batch) == BATCH:
                self._plan(batch)
                batch = []
        if batch:
            self._plan(batch)

    def _plan(self, batch: Sequence[StoredMessage]) -> None:
        with self._handling.attempt():
            self._handling.plan(
                batch, [None] * len(batch), {}, recheck=False, policy=ALL_OR_NOTHING
            )
        self._handling.committed()

    def _parts(self) -> Iterator[CategoryPart]:
        """Give what to read: from each position to the next, the partitions that are beyond."""
        size, after = self._rows[0].partitions, 0
        for until in sorted({row.position for row in self._rows} - {0}):
            beyond = tuple(row.partition for row in self._rows if row.position >= until)
            partitions = None if len(beyond) == size else beyond
            yield CategoryPart(after, until, partitions, size)
            after = until


def _check(rows: Sequence[StoredPosition]) -> None:
    """Refuse positions that do not say what was handled."""
    first, lowest = rows[0], min(row.position for row in rows)
    if any(row.foreign for row in rows):
        raise StoreReplacedError(first.consumer, first.category, max(row.position for row in rows))
    former = first.former_positions
    if former is not None and lowest < max(former):
        raise StoreError(
            f"The number of partitions of {first.consumer} in {first.category} was changed, and "
            f"some messages from before that are not handled; run its consumers until every "
            f"position is past {max(former)}, and then verify"
        )
