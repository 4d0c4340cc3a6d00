"""The consumers, their partitions and processes, and what waits for its next attempt."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection
from psycopg.rows import class_row

from consumers.group.inspection.status import (
    PartitionStatus,
    groups,
    of_stored,
    read_time,
    snapshot,
)
from consumers.group.inspection.stored_positions import ConsumerId, reads_of
from consumers.group.inspection.unread import UnreadCategory, unread_categories
from consumers.group.inspection.waits import pauses_of
from consumers.group.membership import LEASE
from consumers.pauses.administration import read_pauses
from consumers.pauses.pause import StoredPause
from reservation.component import Component
from reservation.inspection.schedule import SeriesEntry, list_series
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("cli.console.reading", "consumers.sql")

# Unread messages that are counted for a category. A page that refreshes itself counts fewer than
# `reservation status` does.
MOST_COUNTED = 2_500

# Waiting messages and processes that are shown.
MOST_WAITING = 20
MOST_MEMBERS = 500


@dataclass(frozen=True, slots=True)
class Member:
    """A process in a group: when its heart beat last, and the partitions that it holds."""

    consumer: str
    category: str
    process: str
    joined_at: datetime
    beat: float
    gone: bool
    held: Sequence[int]


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message that waits for its next attempt."""

    consumer: str
    category: str
    global_position: int
    stream_name: str
    type: str
    attempts: int
    reason: str
    next_attempt_at: datetime


@dataclass(frozen=True, slots=True)
class Group:
    """One consumer's group in one category: its partitions, and who shares them."""

    consumer: str
    category: str
    partitions: Sequence[PartitionStatus]
    members: Sequence[Member]
    pauses: Sequence[StoredPause]


@dataclass(frozen=True, slots=True)
class ConsumersView:
    """A look at all consumers, the command categories that none was ever run on, and the series."""

    time: datetime
    groups: Sequence[Group]
    waiting: Sequence[WaitingMessage]
    unread: Sequence[UnreadCategory]
    series: Sequence[SeriesEntry]


def known_reads(
    connection: Connection[Any], components: Iterable[Component[Any]]
) -> list[ConsumerId]:
    """Return what every consumer reads that was ever run, or that a component declares."""
    stored = {(row[0], row[1]) for row in connection.execute(_QUERIES["reads"])}
    return sorted(stored.union(*(reads_of(component) for component in components)))


def read_consumers(
    connection: Connection[Any], components: Iterable[Component[Any]] = ()
) -> ConsumersView:
    """Look at all consumers under one snapshot, those of components even if they were never run."""
    with snapshot(connection):
        time, _ = read_time(connection)
        reads = known_reads(connection, components)
        pauses = read_pauses(connection)
        members: dict[ConsumerId, list[Member]] = {}
        with connection.cursor(row_factory=class_row(Member)) as cursor:
            values = {"lease": LEASE, "limit": MOST_MEMBERS}
            for member in cursor.execute(_QUERIES["members"], values):
                members.setdefault((member.consumer, member.category), []).append(member)
        found = [
            Group(
                rows[0].consumer,
                rows[0].category,
                of_stored(connection, rows, MOST_COUNTED),
                members.get((rows[0].consumer, rows[0].category), ()),
                pauses_of(pauses, rows[0].consumer, rows[0].category),
            )
            for rows in groups(connection, reads)
        ]
        with connection.cursor(row_factory=class_row(WaitingMessage)) as cursor:
            names = {
                "consumers": [consumer for consumer, _ in reads],
                "categories": [category for _, category in reads],
                "limit": MOST_WAITING,
            }
            waiting = cursor.execute(_QUERIES["waiting"], names).fetchall()
        unread = unread_categories(connection, [category for _, category in reads])
        series = list_series(connection)
    return ConsumersView(time, found, waiting, unread, series)
