"""The scheduled messages of a store, and the overdue ones."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection

from reservation.postgres.arrays import fetch_all
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.inspection", "schedule.sql")


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
