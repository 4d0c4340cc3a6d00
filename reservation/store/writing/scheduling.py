"""Scheduling: messages that are written later, at a time or after a delay.

A scheduled message is a row of ``reservation.scheduled``, encoded as it will be written. A
consumer's process writes it when it is due, by the server's clock.
``sql/reservation/scheduling.sql`` explains why it is written once. (Source: the transactional
outbox in Richardson's *Microservices Patterns*, 3.3.7, with a time.)
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple, TypeVar

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
from reservation.store.writing.sending import in_span
from reservation.store.writing.write import Row, Write, row_of

T = TypeVar("T")

# The times that the table can hold.
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)


class Cancellation(Enum):
    """What became of a message that was to be cancelled.

    Attributes:
        CANCELLED: it is cancelled, now or before, and will not be written.
        WRITTEN: it was written before.
        UNKNOWN: no such message is scheduled; for a sender also if it may not write it.
    """

    CANCELLED = "cancelled"
    WRITTEN = "written"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ScheduledWrite:
    """One message to be written later, as a handler schedules it.

    Attributes:
        message: an instance of a dataclass.
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
    """What one call of `write_due` did.

    Attributes:
        written: how many messages it wrote.
        refused: how many the log refused; they are tried again.
        next_in: seconds until the next message is to be written, negative if it is overdue; None if
            there is none.
    """

    written: int
    refused: int
    next_in: float | None


def check_when(at: object, after: object) -> tuple[datetime | None, timedelta | None]:
    """Return when a message is to be written: the time in UTC, or the delay.

    Args:
        at: a `datetime` with a time zone, or None.
        after: a `timedelta`, or a text such as ``"30m"``, or None.

    Raises:
        StoreError: both are given, or neither, or one that cannot be.
    """
    if (at is None) == (after is None):
        given = "neither at= nor after=" if at is None else "both at= and after="
        raise StoreError(f"A message is scheduled with a time or a delay, not with {given}")
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
    """Return a message, encoded.

    Args:
        scheduled: the message.
        written: gives the type and the version that messages of a class are written with.

    Raises:
        StoreError: the message cannot be written.
    """
    write = Write(scheduled.message, scheduled.stream_name, scheduled.id, scheduled.metadata)
    return ScheduledRow(*row_of(write, written=written)[:5], scheduled.due)


def schedule_rows(rows: Sequence[ScheduledRow]) -> Statement[float]:
    """Return the statement that schedules messages, each once.

    Its result is the number of seconds until the first of them is due.

    Raises:
        RefusedError: they are too long together.
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


class _Scheduling(ABC):
    """What a client needs to schedule; see `MessageStore`."""

    _max_bytes: int

    def _to_schedule(
        self, writes: Iterable[Write], at: datetime | None, after: timedelta | str | None
    ) -> Statement[uuid.UUID]:
        """Return the statement that schedules a message, of which there is one."""
        due, delay = check_when(at, after)
        (write,) = writes
        row = row_of(write, uuid7s(1)[0], self._max_bytes)
        check_size([row])
        parameters = [*row[:5], due, delay]
        return Statement(QUERIES["schedule_message"], parameters, lambda _: row.id, [row.id])


def _to_cancel(message_id: uuid.UUID) -> Statement[Cancellation]:
    return Statement(
        QUERIES["cancel_scheduled"],
        [check_id(message_id)],
        lambda found: Cancellation(found[0][0]),
    )


class Scheduling(_Scheduling):
    """The part of `MessageStore` that schedules messages."""

    @abstractmethod
    def _run(self, statement: Statement[T]) -> T: ...

    def schedule(
        self,
        message: object,
        stream_name: str,
        *,
        at: datetime | None = None,
        after: timedelta | str | None = None,
        id: uuid.UUID | None = None,  # noqa: A002  the field's word
        metadata: Metadata | None = None,
    ) -> uuid.UUID:
        """Let a message be written to the end of a stream later, by any consumer of the store.

        It is written once, when it is due by the server's clock, and not before. Scheduling the
        same id and content again is harmless: the first time stands, and a message that was
        cancelled or written is not scheduled again.

        Args:
            message: a dataclass instance.
            stream_name: the stream to write to.
            at: when, with a time zone; a time that has passed is now.
            after: how long from now, by the server's clock: a `timedelta`, or a text such as
                ``"500ms"``, ``"30m"`` or ``"2d"``.
            id: the id that the message will have; a new UUID if None.
            metadata: the metadata of the message.

        Returns:
            The id of the message, with which `cancel` cancels it.

        Raises:
            MessageIdConflictError: the id is in use for other content.
            CommitUnknownError: the connection was lost before the answer came; schedule again with
                the id that the error carries.
            EncodeError: as for `write`.
            StreamNameError: the name is not valid, or is that of a category.
            StoreError: both times are given, or neither; the delay is negative, or the time has no
                time zone.
        """
        with in_span([Write(message, stream_name, id, metadata)], "schedule") as sent:
            return self._run(self._to_schedule(sent, at, after))

    def cancel(self, id: uuid.UUID) -> Cancellation:  # noqa: A002
        """Cancel a scheduled message, unless it was written; say what became of it.

        Args:
            id: the id of the message.

        Raises:
            StoreError: the id is no UUID, or the database refuses or is away.
        """
        return self._run(_to_cancel(id))

    def schedule_encoded(self, rows: Sequence[ScheduledRow]) -> float:
        """Schedule messages that are already encoded, each once; see `schedule_rows`."""
        return self._run(schedule_rows(rows))


class AsyncScheduling(_Scheduling):
    """The part of `AsyncMessageStore` that schedules messages."""

    @abstractmethod
    async def _run(self, statement: Statement[T]) -> T: ...

    async def schedule(
        self,
        message: object,
        stream_name: str,
        *,
        at: datetime | None = None,
        after: timedelta | str | None = None,
        id: uuid.UUID | None = None,  # noqa: A002  the field's word
        metadata: Metadata | None = None,
    ) -> uuid.UUID:
        """Let a message be written later; see `MessageStore.schedule`."""
        with in_span([Write(message, stream_name, id, metadata)], "schedule") as sent:
            return await self._run(self._to_schedule(sent, at, after))

    async def cancel(self, id: uuid.UUID) -> Cancellation:  # noqa: A002
        """Cancel a scheduled message, unless it was written; see `MessageStore.cancel`."""
        return await self._run(_to_cancel(id))


# Any: connections differ in what their rows are.
def write_due(connection: Connection[Any], most: int = 1000) -> WrittenLater:
    """Write scheduled messages that are due, in one statement and one commit.

    Another session that does so at the same time is not waited for.

    Args:
        connection: of a role that may write to the log, in autocommit.
        most: how many messages to write at most.

    Raises:
        ExpectedVersionError, LockTimeoutError, SerializationError: somebody is in the way; call
            again.
        StoreError: the database refuses or is away.
    """
    return WrittenLater(*fetch_all(connection, QUERIES["write_scheduled"], [most])[0])


def bring_forward(connection: Connection[Any], span: timedelta) -> None:
    """Let scheduled messages be due earlier, for tests.

    Args:
        connection: of a role that may write to the log.
        span: by how much.
    """
    fetch_all(connection, QUERIES["bring_forward"], {"span": span})


def count_scheduled(connection: Connection[Any], most: int) -> int:
    """Return how many messages are scheduled, and not cancelled.

    Args:
        connection: of a role that may read the schedule.
        most: how many are counted at most.
    """
    return int(fetch_all(connection, QUERIES["count_scheduled"], [most])[0][0])
