"""Scheduling: messages that are written later, at a time or after a delay.

A scheduled message is a row of ``reservation.scheduled``, encoded as it will be written. A
consumer's process writes it when it is due, by the server's clock.
``sql/reservation/scheduling.sql`` explains why it is written once. (Source: the transactional
outbox in Richardson's *Microservices Patterns*, 3.3.7, with a time.)
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

from psycopg import Connection

from reservation.errors import StoreError
from reservation.messages.ids import uuid7s
from reservation.messages.metadata import Metadata
from reservation.messages.written import WrittenAs, written_as
from reservation.postgres.arrays import JsonArray, TextArray, UuidArray, fetch_all
from reservation.serialization.durations import time_span
from reservation.store.argument_checks import check_id
from reservation.store.statements import QUERIES, Statement
from reservation.store.writing.batch import check_size
from reservation.store.writing.write import Row, Write, row_of

# The times that the table can hold.
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)


class Cancellation(Enum):
    """The outcome of a message that was to be cancelled.

    Attributes:
        CANCELLED: it is cancelled, now or before, and will not be written.
        WRITTEN: it was written before.
        UNKNOWN: no such message is scheduled; for a sender also if it may not write it, or if a
            handler has scheduled it.
    """

    CANCELLED = "cancelled"
    WRITTEN = "written"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ScheduledWrite:
    """One message to be written later, as a handler schedules it.

    Attributes:
        message: an instance of a message class.
        stream_name: where to.
        due: when it is to be written, in UTC.
        id: the id that it will have.
        metadata: what causes it and what it belongs to.
    """

    message: object
    stream_name: str
    due: datetime
    id: uuid.UUID
    metadata: Metadata


class ScheduledRow(NamedTuple):
    """One message to be written later, encoded; the attributes are those of a `ScheduledWrite`."""

    id: uuid.UUID
    stream_name: str
    type: str
    data: str
    metadata: str | None
    due: datetime


@dataclass(frozen=True, slots=True)
class WrittenLater:
    """The result of `write_due`.

    Attributes:
        written: how many messages it wrote.
        refused: how many the log refused; they are tried again, unless they are dead.
        next_in: seconds until the next message is to be written, negative if it is overdue; None if
            there is none.
    """

    written: int
    refused: int
    next_in: float | None


def check_when(at: object, after: object) -> tuple[datetime | None, timedelta | None]:
    """Return the time in UTC at which to write a message, or the delay; one is given."""
    if at is not None and after is not None:
        raise StoreError(
            "A message is scheduled with a time or a delay, not with both at= and after="
        )
    if at is None:
        try:
            return None, time_span(after)
        except ValueError as error:
            raise StoreError(f"A message cannot be scheduled with this delay: {error}") from error
    if not isinstance(at, datetime):
        raise StoreError(f"The time of a message is a datetime, not a {type(at).__name__}")
    if at.utcoffset() is None:
        raise StoreError(
            "The time of a message has no time zone; give it one, such as "
            "datetime(2026, 1, 31, tzinfo=UTC)"
        )
    if not EARLIEST <= at < LATEST:
        raise StoreError(f"The time of a message is from {EARLIEST.year} to {LATEST.year - 1}")
    return at.astimezone(UTC), None


def scheduled_row(scheduled: ScheduledWrite, written: WrittenAs = written_as) -> ScheduledRow:
    """Return a message, encoded."""
    write = Write(scheduled.message, scheduled.stream_name, scheduled.id, scheduled.metadata)
    return ScheduledRow(*row_of(write, written=written)[:5], scheduled.due)


def schedule_rows(rows: Sequence[ScheduledRow]) -> Statement[float]:
    """Return the statement that schedules messages, each once.

    Its result is the number of seconds until the first of them is due.
    """
    check_size([Row(*row[:5], None) for row in rows])
    ids, names, types, data, metadata, due = zip(*rows, strict=True)
    return Statement(
        QUERIES["schedule_messages"],
        [
            UuidArray(ids),
            TextArray(names),
            TextArray(types),
            JsonArray(data),
            JsonArray(metadata),
            list(due),
        ],
        lambda found: float(found[0][0]),
        ids,
    )


def schedule_write(
    writes: Iterable[Write], at: object, after: object, max_bytes: int
) -> Statement[uuid.UUID]:
    """Return the statement that schedules a message, of which there is one."""
    due, delay = check_when(at, after)
    (write,) = writes
    row = row_of(write, uuid7s(1)[0], max_bytes)
    check_size([row])
    parameters = [*row[:5], due, delay]
    return Statement(QUERIES["schedule_message"], parameters, lambda _: row.id, [row.id])


def cancel_scheduled(message_id: uuid.UUID) -> Statement[Cancellation]:
    """Return the statement that cancels a scheduled message."""
    return Statement(
        QUERIES["cancel_scheduled"],
        [check_id(message_id)],
        lambda found: Cancellation(found[0][0]),
    )


# Any: connections differ in what their rows are.
def write_due(connection: Connection[Any], most: int = 1000) -> WrittenLater:
    """Write scheduled messages that are due, in one statement and one commit.

    Another session that does so at the same time is not waited for.
    """
    return WrittenLater(*fetch_all(connection, QUERIES["write_scheduled"], [most])[0])


def retry_scheduled(connection: Connection[Any], ids: Sequence[uuid.UUID]) -> set[uuid.UUID]:
    """Have messages that are dead tried again, and return the ids of those that were."""
    return {row[0] for row in fetch_all(connection, QUERIES["retry_scheduled"], [UuidArray(ids)])}


def bring_forward(connection: Connection[Any], span: timedelta) -> None:
    """Let scheduled messages be due earlier, for tests."""
    fetch_all(connection, QUERIES["bring_forward"], {"span": span})


def count_scheduled(connection: Connection[Any], most: int) -> int:
    """Return how many messages are scheduled, and not cancelled."""
    return int(fetch_all(connection, QUERIES["count_scheduled"], [most])[0][0])
