"""One snapshot of the store that every reader of a job sees.

The driver opens a transaction and exports its snapshot; each reader takes it over, so partitions
and categories that are read at different moments fit together to the row.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from psycopg import Connection, Error, IsolationLevel, sql

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import StoreReplacedError
from reservation.maintenance import finding_decisions
from reservation.maintenance.eventide_positions import position_stream
from reservation.maintenance.finding_decisions import FindingDecision
from reservation.messages.message import MAX_POSITION
from reservation.postgres.connection import connect
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.store.schema.identity import store_id
from reservation.store.schema.install import is_attached
from spark_jobs.common.declaration import Declaration
from spark_jobs.common.given_data import GivenData
from spark_jobs.snapshot import checksums
from spark_jobs.snapshot.checksums import Checksums
from spark_jobs.snapshot.meaning import Corrected
from spark_jobs.snapshot.progress import Consumed, Progress
from spark_jobs.source import ranges, reading
from spark_jobs.source.columns import CategoryQuery, expressions

# Global positions.
PositionArray: TypeAlias = npt.NDArray[np.int64]

_QUERIES = load_queries("spark_jobs.snapshot")
_SETTINGS = load_queries("spark_jobs.source")["settings"]

# How old a message must be to count as read, if no position is stored.
GRACE = timedelta(minutes=5)

# About how many messages one part of a read holds: what a worker can group in memory.
_MOST_FOR_ONE = 250_000

# 64 MB in pages, some 200,000 messages: what a log that is small has at most.
_SMALL = 8_192

# About how many messages a page of the log holds.
_FOR_A_PAGE = 32

# About how many messages are folded together, and into how many parts they are divided at least.
_FOLDED, _FEWEST = 125_000, 2


def parts_of(messages: int) -> int:
    """Return into how many parts messages are divided, of which each is of bounded size."""
    return max(_FEWEST, messages // _FOLDED)


@dataclass(slots=True)
class Snapshot:
    """A moment of the store.

    Attributes:
        id: the name under which other transactions can take the snapshot over.
        time: when it was taken, in UTC.
        has_positions: whether this package's consumers keep their positions in this store.
        store: the id of the store; None if it has none.
        database_url: the address of the database, which may hold a password.
    """

    id: str
    time: datetime
    has_positions: bool
    store: str | None
    database_url: str = field(repr=False)
    _connection: Connection[Any]
    _since: float
    _held: timedelta | None = None

    def release(self) -> timedelta:
        """Let the server clean up again what the snapshot sees; return how long it was held.

        Nothing can be read afterwards.
        """
        if self._held is None:
            with contextlib.suppress(Error):  # a connection that is lost holds nothing
                self._connection.rollback()
            self._connection.close()
            self._held = timedelta(seconds=time.monotonic() - self._since)
        return self._held

    def _rows(self, query: str, values: Mapping[str, Any]) -> list[Any]:
        with translated():
            return self._connection.execute(_QUERIES[query], values).fetchall()

    def progress(self, component: Component, grace: timedelta = GRACE) -> Progress:
        """Return how far the consumers of a component are.

        If no consumer of this package has run, the positions of Eventide's consumers count. In a
        store without the schema reservation and without those, messages older than a grace count
        as read.
        """
        declared = declarations(component)
        categories = [*declared.own_categories, *declared.subscribed_categories]
        return Progress({name: self._consumed(component, name, grace) for name in categories})

    def _consumed(self, component: Component, category: str, grace: timedelta) -> Consumed:
        if self.has_positions:
            named = {"consumer": component.name, "category": category}
            rows, letters = self._rows("positions", named), self._rows("letters", named)
            if rows:
                positions, former, first_position, foreign = rows[0]
                lowest = min(positions)
                return Consumed(
                    lowest,
                    letters=[at for at, is_conflict, _ in letters if not is_conflict],
                    partitions=positions,
                    former_positions=former if max(former or (), default=0) > lowest else (),
                    conflicts=[at for at, is_conflict, _ in letters if is_conflict],
                    discarded=[at for at, is_conflict, over in letters if over > is_conflict],
                    first_position=first_position,
                    deleted={} if foreign is None else self._deleted(**named),
                    given=self._corrected(Declaration.of(component), **named),
                )
        position = None
        # In a category of others, their own consumers store positions.
        if category not in declarations(component).others:
            theirs = {"category": position_stream(category, None)}
            ((position,),) = self._rows("position_of_eventide", theirs)
        if position is not None:
            return Consumed(int(position))
        if self.has_positions:
            return Consumed(0)
        return Consumed(None, before=self.time - grace)

    def _corrected(
        self, declaration: Declaration, consumer: str, category: str
    ) -> dict[Corrected, str]:
        """Return the messages of a category that were corrected, with the data that was given."""
        made = expressions(["content", "kept"], sql.Literal(category), declaration)
        query = sql.SQL(_QUERIES["corrections"].decode()).format(
            **made, consumer=sql.Literal(consumer), category=sql.Literal(category)
        )
        with translated():
            rows = self._connection.execute(query).fetchall()
        return {Corrected(*row): given for *row, given in rows}

    def _deleted(self, consumer: str, category: str) -> dict[int, str]:
        """Return the deleted messages that a consumer stands at; refuse another log than its."""
        rows = self._rows("gone", {"consumer": consumer, "category": category})
        foreign = [int(position) for position, _, is_deleted in rows if not is_deleted]
        if foreign:
            raise StoreReplacedError(consumer, category, max(foreign))
        return {int(position): str(message_id) for position, message_id, _ in rows}

    def given_data(self, consumer: str, category: str, first: int, last: int) -> list[GivenData]:
        """Return the data that letters of a part of a category were given."""
        if not self.has_positions:
            return []
        of = {"consumer": consumer, "category": category, "first": first, "last": last}
        return [GivenData(*row) for row in self._rows("given_data", of)]

    def passes(self, consumer: str) -> tuple[int, ...]:
        """Return numbers that change if a consumer has recorded or lost passes."""
        if not self.has_positions:
            return ()
        (row,) = self._rows("passes", {"consumer": consumer})
        return tuple(map(int, row))

    def accepted(self) -> dict[str, FindingDecision]:
        """Return the decisions by which findings were accepted, by the findings' ids."""
        if not self.has_positions:
            return {}
        return {one.finding: one for one in finding_decisions.accepted(self._connection)}

    def is_small(self) -> bool:
        """Return whether the log is so small that dividing the work takes longer than doing it."""
        with translated():
            return ranges.pages(self._connection) < _SMALL

    def number_of_parts(self, more: int = 0) -> int:
        """Return into how many parts all messages are divided, of which each is of bounded size."""
        with translated():
            messages = _FOR_A_PAGE * ranges.pages(self._connection)
        return parts_of(messages + more)

    def parts(
        self,
        queries: Sequence[CategoryQuery],
        number: int,
        *,
        after: Mapping[str, int],
        until: Mapping[str, int],
    ) -> list[str]:
        """Return queries that read categories in parts of about equal numbers of messages.

        Each part is a range of the log over all categories, because related messages are mostly
        near each other.
        """
        connection = self._connection
        if not queries:
            return []
        names = [query.category for query in queries]
        begins = [after.get(name, 0) + 1 for name in names]
        ends = [until[name] if name in until else ranges.head(connection, name) for name in names]
        found = ranges.divided(
            connection, names, min(begins), max(ends), number, most=_MOST_FOR_ONE
        )
        composed = [query.composed(connection) for query in queries]
        return [
            "\nUNION ALL\n".join(
                query.in_range(max(first, begin), min(last, end))
                for query, begin, end in zip(composed, begins, ends, strict=True)
            )
            for first, last in found
        ]

    def head(self, category: str) -> tuple[int, str | None]:
        """Return the global position and id of a category's last message, or 0 and None."""
        rows = self._rows("head", {"category": category})
        return (int(rows[0][0]), str(rows[0][1])) if rows else (0, None)

    def older(
        self, category: str, before: datetime, *, after: int, up_to: int | None
    ) -> tuple[int, str] | None:
        """Return the last of the first messages of a category that are all older than a time."""
        values = {
            "category": category,
            "first": after + 1,
            "last": MAX_POSITION if up_to is None else up_to,
            "before": before.replace(tzinfo=None),  # the column is without a zone
        }
        rows = self._rows("older", values)
        return (int(rows[0][0]), str(rows[0][1])) if rows else None

    def position_at(self, time: datetime) -> int:
        """Return the global position from which on messages are not older than a time.

        It is found by bisection, as the times of messages are in the order of their global
        positions, but for those of writers that took long.
        """
        before = time.astimezone(UTC).replace(tzinfo=None)  # the column is without a zone
        low, high = 1, MAX_POSITION
        while low < high:
            middle = (low + high) // 2
            rows = self._rows("is_older", {"first": middle, "before": before})
            if rows and rows[0][1]:
                low = int(rows[0][0]) + 1
            else:
                high = middle
        return low

    def checksums(self, query: CategoryQuery, first: int, last: int) -> dict[str, Checksums]:
        """Return what the server counts and hashes of a part of a category, by day."""
        with translated():
            return checksums.of_store(self._connection, query, first, last)

    def blocks(self, size: int, last: int) -> dict[int, tuple[int, int]]:
        """Return how many messages each block of positions has, and the sum of their positions."""
        rows = self._rows("blocks", {"size": size, "last": last})
        return {int(block): (int(count), int(total)) for block, count, total in rows}

    def positions_in(self, size: int, blocks: Sequence[int], last: int) -> PositionArray:
        """Return the global positions of the messages in some blocks, up to one."""
        rows = self._rows("positions_in", {"size": size, "blocks": list(blocks), "last": last})
        return np.array([at for (at,) in rows], np.int64)

    def positions_behind(self, first: int) -> Iterator[PositionArray]:
        """Yield the global positions of all messages behind one, in parts."""
        query = _QUERIES["positions_behind"].decode() % first
        schema = pa.schema([("position", pa.int64())])
        for batch in reading.batches([query], self.id, schema, self.database_url):
            yield batch.column(0).to_numpy()

    def probe(self, seed: int) -> int:
        """Return a hash of a known text: equal as long as the server hashes equal texts alike."""
        ((found,),) = self._rows("probe", {"seed": seed})
        return int(found)

    def holds(self, global_position: int, message_id: str) -> bool:
        """Return whether the store holds a message."""
        return bool(self._rows("holds", {"global_position": global_position, "id": message_id}))


@contextlib.contextmanager
def exported_snapshot(database_url: str) -> Iterator[Snapshot]:
    """Take a snapshot of the store and keep it alive for others to read, until it is released."""
    with connect(database_url, application_name="reservation snapshot") as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        since = time.monotonic()
        has_positions = is_attached(connection)
        # The transaction stays open, and idle, while the job reads.
        connection.execute(_SETTINGS)
        with translated():
            snapshot, at = connection.execute(_QUERIES["export_snapshot"]).fetchall()[0]
        found = store_id(connection)
        store = None if found is None else str(found)
        yield Snapshot(snapshot, at, has_positions, store, database_url, connection, since)
