"""The scheduled messages of a store, the overdue ones, and the series of recurring commands."""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from psycopg import Connection

from reservation.postgres.arrays import fetch_all
from reservation.postgres.queries import load_queries
from reservation.recurring.timetable import Timetable

_QUERIES = load_queries("reservation.inspection", "schedule.sql")

# The states of a series.
SERIES_STATES = ("scheduled", "overdue", "failing", "stopped")


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """The schedule's status.

    Attributes:
        messages: how many messages are to be written, those that are overdue included.
        next_at: when the next of those that are not overdue is due; None without one.
        overdue: how many are due, and not written.
        overdue_since: when the first of these was due; None without one.
        refused: how many the log has refused, those that are dead included.
        dead: how many of these are not tried again.
    """

    messages: int = 0
    next_at: datetime | None = None
    overdue: int = 0
    overdue_since: datetime | None = None
    refused: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """A message that is scheduled, or was cancelled.

    Attributes:
        id: its id.
        stream_name: the stream that it is written to.
        type: its type.
        due_at: when it is due.
        scheduled_at: when it was scheduled.
        cancelled_at: when it was cancelled; None if it was not.
        attempts: how often the log has refused it.
        attempt_at: when it is tried again; None if the log has not refused it.
        error: why the log refused it last; None if it has not.
        dead_at: when the last attempt failed; None if it is not dead.
    """

    id: uuid.UUID
    stream_name: str
    type: str
    due_at: datetime
    scheduled_at: datetime
    cancelled_at: datetime | None
    attempts: int
    attempt_at: datetime | None
    error: str | None
    dead_at: datetime | None

    def state(self, now: datetime) -> str:
        """Return ``scheduled``, ``overdue``, ``refused``, ``dead`` or ``cancelled``."""
        if self.cancelled_at is not None:
            return "cancelled"
        if self.dead_at is not None:
            return "dead"
        if self.attempts:
            return "refused"
        return "overdue" if self.due_at <= now else "scheduled"


@dataclass(frozen=True, slots=True)
class SeriesEntry:
    """A series of a component, as the store knows it.

    Attributes:
        component: the component's name.
        name: its own name.
        expression: the cron expression.
        zone: the time zone.
        missed: which ticks are sent that no process was there for.
        reached: the time up to which all ticks are done with.
        last_tick: the last tick that was sent; None before the first.
        attempts: how often the tick that is due was begun.
        attempt_at: when it is begun again; None if none was begun.
        error: why the last attempt failed; None once a tick is sent.
        given_up: how many ticks were given up after attempts that failed.
        stopped_at: when it was not declared any more; None if it is.
    """

    component: str
    name: str
    expression: str
    zone: str
    missed: str
    reached: datetime
    last_tick: datetime | None
    attempts: int
    attempt_at: datetime | None
    error: str | None
    given_up: int
    stopped_at: datetime | None

    def next_tick(self) -> datetime | None:
        """Return the next tick, or the first that is due; None if the series is stopped."""
        timetable = self._timetable()
        if timetable is None or self.stopped_at is not None:
            return None
        return next(timetable.after(self.reached), None)

    def local(self, time: datetime) -> datetime:
        """Return a time in the time zone, or in UTC if that is unknown where this runs."""
        timetable = self._timetable()
        return time.astimezone(UTC) if timetable is None else timetable.local(time)

    def _timetable(self) -> Timetable | None:
        try:
            return Timetable(self.expression, self.zone)
        except ValueError:
            return None

    def state(self, now: datetime) -> str:
        """Return one of `SERIES_STATES`."""
        if self.stopped_at is not None:
            return "stopped"
        if self.attempts and self.error is not None:
            return "failing"
        tick = self.next_tick()
        return "overdue" if tick is not None and tick <= now else "scheduled"


@dataclass(frozen=True, slots=True)
class SeriesStatus:
    """The series of a store, counted.

    Attributes:
        declared: how many are not stopped.
        next_at: their next tick that is not due yet; None without one.
        overdue: how many have a tick that is due, and did not fail.
        failing: how many have a tick for which the function fails.
        stopped: how many are not declared any more.
    """

    declared: int = 0
    next_at: datetime | None = None
    overdue: int = 0
    failing: int = 0
    stopped: int = 0


def series_status(series: Sequence[SeriesEntry], now: datetime) -> SeriesStatus:
    """Count series by their states at a time."""
    states = Counter(one.state(now) for one in series)
    ticks = [tick for one in series if (tick := one.next_tick()) is not None and tick > now]
    return SeriesStatus(
        len(series) - states["stopped"],
        min(ticks, default=None),
        states["overdue"],
        states["failing"],
        states["stopped"],
    )


# Any: connections differ in what their rows are.
def list_series(connection: Connection[Any]) -> Sequence[SeriesEntry]:
    """Return the series of all components, by component and name."""
    return [SeriesEntry(*row) for row in fetch_all(connection, _QUERIES["series"])]


# Any: connections differ in what their rows are.
def read_schedule(connection: Connection[Any], most: int | None = None) -> ScheduleStatus:
    """Return how much is scheduled."""
    return ScheduleStatus(*fetch_all(connection, _QUERIES["status"], {"most": most})[0])


def list_scheduled(
    connection: Connection[Any], limit: int, *, category: str | None = None, cancelled: bool = False
) -> tuple[datetime, Sequence[ScheduleEntry]]:
    """Return the time by the server's clock, and what is scheduled, the first due first."""
    parameters = {"category": category, "cancelled": cancelled, "limit": limit}
    rows = fetch_all(connection, _QUERIES["list"], parameters)
    ((now,),) = fetch_all(connection, _QUERIES["time"])
    return now, [ScheduleEntry(*row) for row in rows]
