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
from consumers.group.inspection.stored_positions import Reads, reads_of
from consumers.group.membership import LEASE
from reservation.component import Component
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
    """A process that is in a group.

    Attributes:
        consumer: the component's name.
        category: the category that it reads.
        process: its host and process id.
        partition: the only partition that it takes; None for its fair share.
        joined_at: when it joined.
        beat: seconds since it last renewed its lease.
        gone: whether its lease or its session has ended.
        held: the partitions that it holds.
    """

    consumer: str
    category: str
    process: str
    partition: int | None
    joined_at: datetime
    beat: float
    gone: bool
    held: Sequence[int]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that waits for its next attempt.

    Attributes:
        consumer: the component's name.
        category: the category of the message.
        global_position: its global position.
        stream_name: its stream.
        type: its type.
        attempts: how often it was tried.
        reason: the kind of its last error.
        next_attempt_at: when it is tried again.
    """

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
    """How one consumer stands in one category.

    Attributes:
        consumer: the component's name.
        category: the category that it reads.
        partitions: its partitions, from 0.
        members: the processes that share them.
    """

    consumer: str
    category: str
    partitions: Sequence[PartitionStatus]
    members: Sequence[Member]


@dataclass(frozen=True, slots=True)
class Consumers:
    """A look at all consumers.

    Attributes:
        time: when it was taken, by the server's clock.
        groups: what was seen, by consumer and category.
        waiting: the messages that are tried again soonest.
    """

    time: datetime
    groups: Sequence[Group]
    waiting: Sequence[Waiting]


def known_reads(connection: Connection[Any], components: Iterable[Component[Any]]) -> list[Reads]:
    """Return what every consumer reads that was ever run, or that a component declares."""
    stored = {(row[0], row[1]) for row in connection.execute(_QUERIES["reads"])}
    return sorted(stored.union(*(reads_of(component) for component in components)))


def read_consumers(
    connection: Connection[Any], components: Iterable[Component[Any]] = ()
) -> Consumers:
    """Look at all consumers under one snapshot.

    Args:
        connection: of an auditor.
        components: whose consumers to look at even if they were never run.

    Raises:
        StoreError: the database refuses, or is away.
    """
    with snapshot(connection):
        time, _ = read_time(connection)
        reads = known_reads(connection, components)
        members: dict[Reads, list[Member]] = {}
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
            )
            for rows in groups(connection, reads)
        ]
        with connection.cursor(row_factory=class_row(Waiting)) as cursor:
            names = {
                "consumers": [consumer for consumer, _ in reads],
                "categories": [category for _, category in reads],
                "limit": MOST_WAITING,
            }
            waiting = cursor.execute(_QUERIES["waiting"], names).fetchall()
    return Consumers(time, found, waiting)
