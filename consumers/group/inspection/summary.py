"""Every consumer's status in each category, its partitions taken together.

These are the numbers of `consumers.group.inspection.status`, added up for whoever asks again and
again: the metrics of a supervisor, and a page that shows all consumers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import Connection

from consumers.group.inspection.breakers import BreakerStatus, read_breakers
from consumers.group.inspection.status import (
    MOST_COUNTED,
    Lag,
    groups,
    of_stored,
    read_time,
    snapshot,
)
from consumers.group.inspection.stored_positions import ConsumerId, StoredPosition
from consumers.group.inspection.waits import OpenLetters, pauses_of, total, why
from consumers.pauses.administration import read_pauses
from consumers.pauses.pause import StoredPause
from reservation.inspection.schedule import (
    ScheduleStatus,
    SeriesEntry,
    list_series,
    read_schedule,
)
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.group.inspection", "status.sql")


@dataclass(frozen=True, slots=True)
class ConsumerSummary:
    """One consumer's status in a category, all of its partitions taken together.

    Attributes:
        consumer: the component's name.
        category: the category that it reads.
        partitions: how many the category is in for this consumer; 1 if it was never run.
        without_holder: how many of them nobody reads: no process holds them, or their holder ended
            without giving them back.
        foreign: whether a position was taken in another log, so that it means nothing here.
        head: the global position of the category's last message; 0 if there is none.
        lag: how many messages are not handled, and the seconds since the first of them was written,
            by the server's clock: 0 if none is left, and None if it was not found.
        letters: its open letters.
        parked_entities: of how many entities the later messages are parked.
        next_attempt_at: when the first letter that waits is due; None if none waits.
        updated_at: when a position was last written; None if the consumer was never run.
        pauses: those that concern it, those of all that it reads first.
    """

    consumer: str
    category: str
    partitions: int
    without_holder: int
    foreign: bool
    head: int
    lag: Lag
    letters: OpenLetters
    parked_entities: int
    next_attempt_at: datetime | None
    updated_at: datetime | None
    pauses: Sequence[StoredPause]

    @property
    def is_paused(self) -> bool:
        """Whether it handles nothing."""
        return bool(self.pauses) and self.pauses[0].scope.is_whole

    def why(self, since: Callable[[datetime], str]) -> list[str]:
        """Return why messages are not handled, in a few words each."""
        unread = bool(self.lag.messages or self.lag.at_least)
        nobody = self.without_holder > 0
        return why(self.letters, self.pauses, since, unread=unread, without_holder=nobody)


@dataclass(frozen=True, slots=True)
class Summary:
    """A look at the consumers, category by category.

    Attributes:
        time: when it was taken, by the server's clock.
        store_id: the random id of the store.
        consumers: what was seen, by consumer and category.
        breakers: those of their handlers.
        schedule: what is scheduled in the store, counted as far as the lags are.
        series: the recurring commands of all components.
    """

    time: datetime
    store_id: UUID
    consumers: Sequence[ConsumerSummary]
    breakers: Sequence[BreakerStatus]
    schedule: ScheduleStatus
    series: Sequence[SeriesEntry]


def read_summary(
    connection: Connection[Any],
    reads: Sequence[ConsumerId] | None = None,
    *,
    most_counted: int = MOST_COUNTED,
) -> Summary:
    """Look at consumers under one snapshot, and add up the partitions of each category.

    The time that it takes does not grow with the log. It grows with the messages that are not
    handled, up to so many for each category, with the scheduled ones, up to as many, and with the
    open dead letters.
    """
    with snapshot(connection):
        time, store_id = read_time(connection)
        pauses = read_pauses(connection)
        consumers = [
            _summary(connection, rows, most_counted, pauses) for rows in groups(connection, reads)
        ]
        return Summary(
            time,
            store_id,
            consumers,
            read_breakers(connection, reads),
            read_schedule(connection, most_counted),
            list_series(connection),
        )


def _summary(
    connection: Connection[Any],
    rows: Sequence[StoredPosition],
    most_counted: int,
    pauses: Sequence[StoredPause],
) -> ConsumerSummary:
    """Add up the partitions of one consumer and category."""
    found = of_stored(connection, rows, most_counted)
    first = rows[0]
    names = {"consumer": first.consumer, "category": first.category}
    ((entities,),) = connection.execute(_QUERIES["parked_entities"], names).fetchall()
    holders = [row.holder for row in rows]
    return ConsumerSummary(
        first.consumer,
        first.category,
        first.partitions,
        without_holder=sum(holder is None or holder.gone for holder in holders),
        foreign=any(row.foreign for row in rows),
        head=found[0].head,
        lag=_total([one.lag for one in found]),
        letters=total([one.letters for one in found]),
        parked_entities=entities,
        next_attempt_at=min(
            (one.next_attempt_at for one in found if one.next_attempt_at), default=None
        ),
        updated_at=max((row.updated_at for row in rows if row.updated_at), default=None),
        pauses=pauses_of(pauses, first.consumer, first.category),
    )


def _total(lags: Sequence[Lag]) -> Lag:
    at_least = any(lag.at_least for lag in lags)
    known = [lag.seconds for lag in lags if lag.seconds is not None]
    return Lag(
        sum(lag.messages for lag in lags),
        at_least,
        max(known, default=None if at_least else 0.0),
    )
