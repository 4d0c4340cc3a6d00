"""The position, lag and holder of every consumer, as one snapshot shows them.

This only reads, so an auditor may do it. The lag is counted in passes over a category, each with a
limited number of messages, from the partition that is furthest behind. A backlog of millions takes
no longer than one pass.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import Connection

from consumers.group.inspection.breakers import BreakerStatus, read_breakers
from consumers.group.inspection.stored_positions import (
    ConsumerId,
    StoredPosition,
    read_positions,
    reads_of,
)
from consumers.group.inspection.unread import UnreadCategory, unread_categories
from consumers.group.inspection.waits import OpenLetters
from consumers.pauses.administration import read_pauses
from consumers.pauses.pause import StoredPause
from reservation.component import Component
from reservation.inspection.oldest_snapshot import HeldSnapshot, oldest_snapshot
from reservation.inspection.schedule import (
    ScheduleStatus,
    SeriesStatus,
    list_series,
    read_schedule,
    series_status,
)
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.group.inspection", "status.sql")

# Of messages that one pass looks at, and so the most that are counted for a partition.
MOST_COUNTED = 100_000

# Passes over one category. One is enough for partitions that are close together; one that no pass
# came to is said to be at an unknown distance.
MOST_PASSES = 4


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a partition.

    Attributes:
        messages: how many messages of the partition are not handled, as far as they were counted.
        at_least: whether there may be more that were not counted.
        seconds: since the first of them was written; None if none was found.
        unreadable: the global position of the first of them whose time cannot be read; None if
            there is none.
    """

    messages: int = 0
    at_least: bool = False
    seconds: float | None = None
    unreadable: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One consumer's status in one partition of a category.

    Attributes:
        stored: the position, who holds it, and whether it is foreign.
        head: the global position of the category's last message; 0 if there is none.
        lag: how far behind it is; from the beginning of the category if the position is foreign.
        letters: its open letters.
        next_attempt_at: when the first of those that wait is due; None if none waits.
    """

    stored: StoredPosition
    head: int
    lag: Lag
    letters: OpenLetters
    next_attempt_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """A look at the consumers.

    Attributes:
        time: when it was taken, by the server's clock.
        store_id: the random id of the store.
        partitions: what was seen, by consumer, category and partition.
        breakers: those of handlers, closed ones too.
        schedule: what is scheduled in the store.
        oldest_snapshot: what has held a snapshot of the database for more than ten minutes; None
            without any that can be seen.
        unread: the command categories that no consumer was ever run on.
        pauses: what is paused of these consumers.
        series: the recurring commands of the store.
    """

    time: datetime
    store_id: UUID
    partitions: Sequence[PartitionStatus]
    breakers: Sequence[BreakerStatus]
    schedule: ScheduleStatus
    oldest_snapshot: HeldSnapshot | None
    unread: Sequence[UnreadCategory]
    pauses: Sequence[StoredPause]
    series: SeriesStatus


def read_status(
    connection: Connection[Any],
    component: Component | None = None,
    *,
    most_counted: int = MOST_COUNTED,
) -> Status:
    """Look at all consumers in the store, or at those of a component, under one snapshot."""
    reads = None if component is None else reads_of(component)
    with snapshot(connection):
        time, store_id = read_time(connection)
        partitions = [
            status
            for rows in groups(connection, reads)
            for status in of_stored(connection, rows, most_counted)
        ]
        return Status(
            time,
            store_id,
            partitions,
            read_breakers(connection, reads),
            read_schedule(connection),
            oldest_snapshot(connection),
            unread_categories(connection, [category for _, category in reads or ()]),
            read_pauses(connection, None if component is None else component.name),
            series_status(list_series(connection), time),
        )


@contextmanager
def snapshot(connection: Connection[Any]) -> Iterator[None]:
    """Read in one transaction, in which the planner is left no index but the right one."""
    with translated(), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        limit_planner(connection)
        yield


def limit_planner(connection: Connection[Any]) -> None:
    """Leave the planner no index but the right one, until the transaction ends."""
    connection.execute(_QUERIES["settings"])


def groups(
    connection: Connection[Any], reads: Sequence[ConsumerId] | None
) -> list[list[StoredPosition]]:
    """Return the positions of each consumer and category, those of one category together."""
    found: dict[ConsumerId, list[StoredPosition]] = defaultdict(list)
    for stored in read_positions(connection, reads):
        found[stored.consumer, stored.category].append(stored)
    return list(found.values())


def read_time(connection: Connection[Any]) -> tuple[datetime, UUID]:
    """Return the time of the transaction, by the server's clock, and the random id of the store."""
    ((time, store_id),) = connection.execute(_QUERIES["taken"]).fetchall()
    return time, store_id


def of_stored(
    connection: Connection[Any], rows: Sequence[StoredPosition], most_counted: int = MOST_COUNTED
) -> list[PartitionStatus]:
    """Return how a consumer stands in a category, given the positions of all of its partitions."""
    first = rows[0]
    ((head,),) = connection.execute(_QUERIES["head"], {"category": first.category}).fetchall()
    lags = _lags(connection, head, rows, most_counted)
    of = {"consumer": first.consumer, "category": first.category, "partitions": first.partitions}
    letters: dict[int, dict[str, int]] = defaultdict(dict)
    next_attempts: dict[int, datetime] = {}
    for partition, kind, count, next_attempt in connection.execute(_QUERIES["dead_letters"], of):
        letters[partition][kind] = count
        if next_attempt is not None:
            known = next_attempts.get(partition, next_attempt)
            next_attempts[partition] = min(known, next_attempt)
    return [
        PartitionStatus(
            row,
            head,
            lags[row.partition],
            OpenLetters(letters.get(row.partition, {})),
            next_attempt_at=next_attempts.get(row.partition),
        )
        for row in rows
    ]


def _lags(
    connection: Connection[Any], head: int, rows: Sequence[StoredPosition], most_counted: int
) -> dict[int, Lag]:
    """Count what is left in each partition, the furthest behind first."""
    lags = {row.partition: Lag() for row in rows}
    foreign = any(row.foreign for row in rows)
    reached = {row.partition: 0 if row.foreign else row.position for row in rows}
    behind = {partition: position for partition, position in reached.items() if position < head}
    for _ in range(MOST_PASSES):
        if not behind:
            return lags
        passed = connection.execute(
            _QUERIES["lag"],
            {
                "category": rows[0].category,
                "after": min(behind.values()),
                "limit": most_counted,
                "partitions": rows[0].partitions,
                "former_positions": None if foreign else rows[0].former_positions,
                # Partitions that are no longer behind were counted by an earlier pass.
                "positions": [behind.get(row.partition, head) for row in rows],
            },
        ).fetchall()
        for partition, messages, seconds, last, unreadable in passed:
            if partition is None:
                read, ended = messages, last
            else:
                lags[partition] = Lag(messages, seconds=seconds, unreadable=unreadable)
        if read < most_counted:
            return lags
        for partition in [number for number, position in behind.items() if position < ended]:
            del behind[partition]
            lags[partition] = replace(lags[partition], at_least=True)
    return lags | {partition: Lag(at_least=True) for partition in behind}
