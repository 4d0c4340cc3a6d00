"""Where every consumer is, how far behind, and who is at work on it, as one snapshot shows it.

Nothing but reading, so an auditor may. How far behind is counted in passes over a category, each of
so many messages at most, from the partition that is furthest behind: a backlog of millions takes no
longer to look at than one pass.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from psycopg import Connection
from psycopg.rows import namedtuple_row

from reservation.component import Component
from reservation.queries import load_queries
from reservation.store.errors import translated

_QUERIES = load_queries("consumers", "status.sql")

# Of messages that one pass looks at, and so the most that are counted for a partition.
MOST_COUNTED = 100_000

# Passes over one category. One is enough for partitions that are close together; one that no pass
# came to is said to be at an unknown distance.
MOST_PASSES = 4


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a partition is behind.

    Attributes:
        messages: how many messages of the partition are not dealt with, or were found not to be.
        at_least: whether there may be more that were not counted.
        seconds: since the first of them was written; None if none was found.
    """

    messages: int = 0
    at_least: bool = False
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """The member that may move a partition's position.

    Attributes:
        process: its host and process id; None if that is known no more.
        gone: whether it ended without giving the partition back, and nobody has taken over yet.
    """

    process: str | None
    gone: bool


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """How one consumer stands in one partition of a category.

    Attributes:
        consumer: the component's name.
        category: the category that it reads.
        partition: the number of the partition, from 0.
        partitions: how many the category is in for this consumer.
        position: the global position of the last message dealt with; 0 before the first.
        epoch: how often the partition changed hands; 0 if the consumer was never run.
        head: the global position of the category's last message; 0 if there is none.
        lag: how far behind it is.
        holder: who may move the position; None if nobody.
        updated_at: when the position was last written; None if the consumer was never run.
        dead: how many dead letters it has that nobody has seen to.
        parked: how many messages wait behind those.
        retry: how many of either are to be tried again, and have not been yet.
    """

    consumer: str
    category: str
    partition: int
    partitions: int
    position: int
    epoch: int
    head: int
    lag: Lag
    holder: Holder | None
    updated_at: datetime | None
    dead: int
    parked: int
    retry: int


@dataclass(frozen=True, slots=True)
class Status:
    """A look at the consumers.

    Attributes:
        time: when it was taken, by the server's clock.
        partitions: what was seen, by consumer, category and partition.
    """

    time: datetime
    partitions: Sequence[PartitionStatus]


def read_status(connection: Connection[Any], component: Component | None = None) -> Status:
    """Look at all consumers in the store, or at those of a component, under one snapshot.

    Args:
        connection: of a role that may read messages and positions, not in a transaction.
        component: whose consumers to look at, also those that were never run; None for all that
            ever were.

    Raises:
        StoreError: the database refuses, or is away.
    """
    named: dict[str, list[str] | None] = {"consumers": None, "categories": None}
    if component is not None:
        categories = [component.command_category, *component.reservation_categories]
        named = {"consumers": [component.name] * len(categories), "categories": categories}
    with translated(), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute(_QUERIES["settings"])
        with connection.cursor(row_factory=namedtuple_row) as cursor:
            found: list[Any] = cursor.execute(_QUERIES["partitions"], named).fetchall()
        groups: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for row in found:
            groups[row.consumer, row.category].append(row)
        ((time,),) = connection.execute("SELECT now()").fetchall()
        return Status(time, [one for rows in groups.values() for one in _group(connection, rows)])


def _group(connection: Connection[Any], rows: Sequence[Any]) -> list[PartitionStatus]:
    """Return how a consumer stands in a category, given its rows."""
    consumer, category, partitions = rows[0].consumer, rows[0].category, rows[0].partitions
    found = connection.execute(_QUERIES["head"], {"category": category}).fetchone()
    head = found[0] if found else 0
    lags = _lags(connection, category, head, rows)
    letters: dict[tuple[int, str], int] = {
        (partition, state): count
        for partition, state, count in connection.execute(
            _QUERIES["dead_letters"],
            {"consumer": consumer, "category": category, "partitions": partitions},
        )
    }
    return [
        PartitionStatus(
            consumer=consumer,
            category=category,
            partition=row.partition,
            partitions=partitions,
            position=row.position,
            epoch=row.epoch,
            head=head,
            lag=lags[row.partition],
            holder=None if row.holder is None else Holder(row.process, row.gone),
            updated_at=row.updated_at,
            dead=letters.get((row.partition, "dead"), 0),
            parked=letters.get((row.partition, "parked"), 0),
            retry=letters.get((row.partition, "retry"), 0),
        )
        for row in rows
    ]


def _lags(
    connection: Connection[Any], category: str, head: int, rows: Sequence[Any]
) -> dict[int, Lag]:
    """Count what is left in each partition, the furthest behind first."""
    lags = {row.partition: Lag() for row in rows}
    behind = {row.partition: row.position for row in rows if row.position < head}
    for _ in range(MOST_PASSES):
        if not behind:
            return lags
        passed = connection.execute(
            _QUERIES["lag"],
            {
                "category": category,
                "after": min(behind.values()),
                "limit": MOST_COUNTED,
                "partitions": rows[0].partitions,
                "carried": rows[0].carried,
                # An earlier pass has counted for those that are not behind any more.
                "positions": [behind.get(row.partition, head) for row in rows],
            },
        ).fetchall()
        for partition, messages, seconds, last in passed:
            if partition is None:
                read, ended = messages, last
            else:
                lags[partition] = Lag(messages, seconds=seconds)
        if read < MOST_COUNTED:
            return lags
        for partition in [one for one, position in behind.items() if position < ended]:
            del behind[partition]
            lags[partition] = replace(lags[partition], at_least=True)
    return lags | {partition: Lag(at_least=True) for partition in behind}
