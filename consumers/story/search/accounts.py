"""What the tables of a store say about messages: letters, passes, schedules, HTTP requests."""

import uuid
from collections.abc import Sequence
from typing import Any

from consumers.dead_letters import administration, history
from consumers.dead_letters.stored_letters import Selection
from consumers.story.content.entries import Entry, Kind, Pass, Request
from consumers.story.search.naming import texts_of
from consumers.story.search.reading import Reading
from reservation.inspection.schedule import ScheduledMessage
from reservation.messages.message import StoredMessage
from reservation.messages.metadata import Metadata
from reservation.postgres.arrays import IntArray, UuidArray

MOST = 200
_SCHEDULED_LOOKED_AT = 50_000


def accounts_of(reading: Reading, messages: Sequence[StoredMessage]) -> list[Entry]:
    """Return all that is about some messages and is not in the log, or not found in it by them.

    Args:
        reading: the store.
        messages: the messages.
    """
    if not messages:
        return []
    by_position = {message.global_position: message for message in messages}
    positions = IntArray(sorted(by_position))
    entries = [
        *_letters(reading, by_position, positions),
        *_passes(reading, by_position),
        *_requests(reading, messages),
    ]
    rows = reading.rows(
        "scheduled_by", causes=positions, looked_at=_SCHEDULED_LOOKED_AT, limit=MOST
    )
    return entries + [scheduled_entry(row) for row in rows]


def scheduled_entry(row: tuple[Any, ...]) -> Entry:
    """Return the entry of a row that the statements on what is scheduled give."""
    cause, metadata, *columns = row
    scheduled = ScheduledMessage(*columns)
    followed = Metadata.decode(metadata)
    return Entry(
        Kind.SCHEDULED,
        scheduled.cancelled_at or scheduled.scheduled_at,
        cause=cause,
        cause_stream=followed.causation_message_stream_name,
        scheduled=scheduled,
    )


def _letters(
    reading: Reading, by_position: dict[int, StoredMessage], positions: IntArray
) -> list[Entry]:
    entries = []
    for consumer, category, position in reading.rows("letters", positions=positions, limit=MOST):
        for letter in administration.find(
            reading.connection,
            Selection(consumer, category),
            states=None,
            global_positions=[position],
        ):
            message = by_position[position]
            if letter.message_id == message.id:
                entry = Entry(
                    Kind.LETTER,
                    letter.created_at,
                    message=message,
                    letter=letter,
                    decisions=tuple(history.of_letter(reading.connection, letter)),
                )
                entries.append(entry)
    return entries


def _passes(reading: Reading, by_position: dict[int, StoredMessage]) -> list[Entry]:
    messages = list(by_position.values())
    rows = reading.rows(
        "passes",
        positions=IntArray([message.global_position for message in messages]),
        ids=UuidArray([uuid.UUID(message.id) for message in messages]),
        limit=MOST,
    )
    return [
        Entry(
            Kind.PASS,
            passed_at,
            message=by_position[position],
            passed=Pass(consumer, category, reason),
        )
        for position, consumer, category, reason, passed_at in rows
    ]


def _requests(reading: Reading, messages: Sequence[StoredMessage]) -> list[Entry]:
    """Return the HTTP requests whose key is in a message."""
    ids = {
        key
        for message in messages
        for text in texts_of(message.data).values()
        if (key := as_uuid(text)) is not None
    }
    return requests_of(reading, sorted(ids))


def requests_of(reading: Reading, ids: Sequence[uuid.UUID]) -> list[Entry]:
    """Return the HTTP requests of some ids."""
    if not ids:
        return []
    rows = reading.rows("requests", ids=UuidArray(ids))
    return [
        Entry(Kind.REQUEST, created_at, request=Request(id_, answered_at, status, parked))
        for id_, created_at, answered_at, status, parked in rows
    ]


def as_uuid(text: str) -> uuid.UUID | None:
    """Return the UUID that a text is; None if it is none."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
