"""How far the versions of read models are: their share, rate, time left and dead letters."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import Connection

from consumers.group.inspection.status import PartitionStatus, groups, of_stored, snapshot
from consumers.group.inspection.stored_positions import StoredPosition
from consumers.pauses.administration import read_pauses
from reservation.postgres.queries import load_queries
from reservation.read_models.made_versions import ArchivedPart, MadeVersion, versions

_QUERIES = load_queries("consumers.read_models")

# Seconds between two looks, from which the rate is taken.
INTERVAL = 1.0

_NOTHING = ArchivedPart("", 0, 0, 0)  # archived of a category


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """A version of a read model, as one snapshot shows it.

    What it has yet to handle of an archive is estimated from global positions.

    Attributes:
        made: the version.
        partitions: the status of each partition of what it reads, also where it was never run.
        share: how much of the global positions of its categories it has passed, from 0 to 1.
        is_paused: whether anything that it reads is paused.
        rate: how many messages it handles in a second; None if it is not behind.
        left: how many seconds it needs to the end at this rate; None if it is not behind, or does
            not move.
    """

    made: MadeVersion
    partitions: Sequence[PartitionStatus]
    share: float
    is_paused: bool
    rate: float | None = None
    left: float | None = None

    @property
    def lags(self) -> Counter[str]:
        """How many messages of each category it has not handled, as far as they were counted."""
        counts: Counter[str] = Counter()
        for one in self.partitions:
            counts[one.stored.category] += one.lag.messages
        return counts

    @property
    def lag(self) -> int:
        """How many messages it has not handled, as far as they were counted."""
        return self.lags.total()

    @property
    def never_run(self) -> Sequence[str]:
        """The categories of which it has no position yet."""
        return [one.stored.category for one in self.partitions if one.stored.updated_at is None]

    @property
    def at_least(self) -> bool:
        """Whether there may be more that were not counted."""
        return any(one.lag.at_least for one in self.partitions)

    @property
    def open_letters(self) -> int:
        """How many dead letters it has that nobody has decided on."""
        return sum(one.letters.open for one in self.partitions)

    @property
    def is_behind(self) -> bool:
        """Whether it was never run, or has messages to handle."""
        return not self.partitions or self.lag > 0 or self.at_least


def read_versions(
    connection: Connection[Any], model: str | None = None, interval: float = INTERVAL
) -> list[VersionStatus]:
    """Return how far the versions are; where one is behind, after a second look for its rate."""
    with snapshot(connection):
        found = look(connection, model)
    if not any(one.is_behind and one.partitions for one in found):
        return found
    began = time.monotonic()
    time.sleep(interval)
    with snapshot(connection):
        now = {one.made: one for one in look(connection, model)}
        seconds = time.monotonic() - began
        return [
            _with_rate(connection, before, now.get(before.made, before), seconds)
            for before in found
        ]


def look(connection: Connection[Any], model: str | None = None) -> list[VersionStatus]:
    """Return how far the versions are, without rates, in the current transaction."""
    made = {one.schema: one for one in versions(connection, model)}
    stored: dict[str, list[list[StoredPosition]]] = {schema: [] for schema in made}
    for rows in groups(connection, None):
        if rows[0].consumer in stored:
            stored[rows[0].consumer].append(rows)
    never_run = [
        (schema, category)
        for schema, found in stored.items()
        for category in made[schema].categories
        if category not in {rows[0].category for rows in found}
    ]
    for rows in groups(connection, never_run):
        stored[rows[0].consumer].append(rows)
    paused = {one.scope.component for one in read_pauses(connection)}
    return [
        _status(connection, made[schema], found, is_paused=schema in paused)
        for schema, found in stored.items()
    ]


def _status(
    connection: Connection[Any],
    made: MadeVersion,
    stored: Sequence[Sequence[StoredPosition]],
    *,
    is_paused: bool,
) -> VersionStatus:
    archived = {part.category: part for part in made.archived}
    partitions = [
        one
        for rows in stored
        for one in _partitions(connection, rows, archived.get(rows[0].category, _NOTHING))
    ]
    passed = whole = 0
    for one in partitions:
        _, first = _between(connection, one.stored.category, one.head, one.head)
        part = archived.get(one.stored.category, _NOTHING)
        first = min(first, part.first) if part.messages else first
        whole += max(one.head - first + 1, 0) if one.head else 0
        passed += max(min(one.stored.position, one.head) - first + 1, 0) if one.head else 0
    was_run = any(one.stored.updated_at is not None for one in partitions)
    share = passed / whole if whole else float(was_run)
    if was_run and not any(one.lag.messages or one.lag.at_least for one in partitions):
        share = 1.0
    return VersionStatus(made, partitions, share, is_paused)


def _partitions(
    connection: Connection[Any], rows: Sequence[StoredPosition], part: ArchivedPart
) -> list[PartitionStatus]:
    """Return the partitions of a category, with what they have yet to handle of an archive."""
    behind = [replace(row, position=max(row.position, part.last)) for row in rows]
    found = of_stored(connection, behind)
    return [
        replace(
            one,
            stored=row,
            lag=replace(
                one.lag,
                messages=one.lag.messages
                + _archived(part, row.position, part.last, row.partitions),
            ),
        )
        for one, row in zip(found, rows, strict=True)
    ]


def _archived(part: ArchivedPart, after: int, until: int, partitions: int) -> int:
    """Return about how many archived messages a partition has between two positions."""
    after, until = max(after, part.first - 1), min(until, part.last)
    if until <= after:
        return 0
    share = (until - after) / (part.last - part.first + 1)
    return max(round(part.messages * share / partitions), 1)


def _with_rate(
    connection: Connection[Any], before: VersionStatus, now: VersionStatus, seconds: float
) -> VersionStatus:
    if not now.is_behind or not now.partitions:
        return now
    since = {_place(one): one.stored.position for one in before.partitions}
    archived = {part.category: part for part in now.made.archived}
    handled = moved = left = 0
    for one in now.partitions:
        after = since.get(_place(one), 0)
        part = archived.get(one.stored.category, _NOTHING)
        in_store = max(after, part.last)
        count, _ = _between(connection, one.stored.category, in_store, one.stored.position)
        partitions = one.stored.partitions
        handled += round(count / partitions)
        handled += _archived(part, after, one.stored.position, partitions)
        moved += one.stored.position - after
        left += max(one.head - one.stored.position, 0)
    return VersionStatus(
        now.made,
        now.partitions,
        now.share,
        now.is_paused,
        handled / seconds,
        left * seconds / moved if moved > 0 else None,
    )


def _place(one: PartitionStatus) -> tuple[str, int]:
    return one.stored.category, one.stored.partition


def _between(connection: Connection[Any], category: str, after: int, until: int) -> tuple[int, int]:
    values = {"category": category, "after": after, "until": until}
    ((count, first),) = connection.execute(_QUERIES["between"], values).fetchall()
    return int(count), int(first)
