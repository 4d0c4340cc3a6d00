"""What a handler publishes, as the rows that are written, and kept with the state beside them."""

import hashlib
import uuid
from collections.abc import Sequence
from datetime import datetime

import msgspec

from reservation.errors import HandlerError, StoreError
from reservation.handlers.returned import encode_events, encode_further, encode_scheduled
from reservation.messages.message import StoredMessage
from reservation.messages.written import WrittenAs, written_as
from reservation.serialization import codec
from reservation.store.writing.batch import check_size
from reservation.store.writing.scheduling import ScheduledRow, ScheduledWrite
from reservation.store.writing.write import Row, Write

_Stored = tuple[uuid.UUID, str, str, msgspec.Raw, msgspec.Raw]
_decoder = msgspec.json.Decoder(list[_Stored])
_Scheduled = tuple[uuid.UUID, str, str, msgspec.Raw, msgspec.Raw, datetime]
_NONE = b"null"


class _WithScheduled(msgspec.Struct):
    """The form of outputs of which some are scheduled; those without are a list."""

    written: list[_Stored]
    scheduled: list[_Scheduled]


_scheduled_decoder = msgspec.json.Decoder(_WithScheduled)


def outputs(
    message: StoredMessage,
    entity_stream: str,
    events: Sequence[object],
    further: Sequence[Write],
    written: WrittenAs = written_as,
) -> list[Row]:
    """Return what the handler of a message publishes: its events, then its further messages.

    Args:
        message: the message that was handled.
        entity_stream: the stream that its events go to.
        events: what the handler returned.
        further: what it wrote besides.
        written: gives the type and the version that messages of a class are written with.

    Raises:
        MessageError: one of them cannot be written, or expects a version. The state is stored
            before, so it must be sure that all of them can follow.
    """
    for write in further:
        if write.expected_version is not None:
            raise HandlerError(
                f"The handler of {message} wrote to {write.stream_name} with an expected version; "
                f"with StateBased the state is stored first, and what is published must not fail "
                f"after that: leave expected_version out"
            )
    metadata = message.follow_metadata()
    rows = encode_events(events, message, entity_stream, metadata, written=written)
    rows += encode_further(further, message, written)
    try:
        check_size(rows)
    except StoreError as error:
        raise HandlerError(f"The handler of {message} cannot publish: {error}") from error
    return rows


def encode_state(state: object, message: StoredMessage) -> str:
    """Return the JSON text of the state that the handler of a message left.

    Raises:
        HandlerError: it has none.
    """
    try:
        return codec.encode(state)
    except Exception as error:
        raise HandlerError(
            f"The state that the handler of {message} left cannot be stored: {codec.explain(error)}"
        ) from error


def scheduled_outputs(
    message: StoredMessage, scheduled: Sequence[ScheduledWrite], written: WrittenAs = written_as
) -> list[ScheduledRow]:
    """Return what the handler of a message schedules; see `outputs`.

    Raises:
        MessageError: a message cannot be stored.
    """
    rows = encode_scheduled(scheduled, message, written)
    try:
        check_size([Row(*row[:5], None) for row in rows])
    except StoreError as error:
        raise HandlerError(f"The handler of {message} cannot schedule: {error}") from error
    return rows


def to_text(rows: Sequence[Row], scheduled: Sequence[ScheduledRow] = ()) -> str:
    """Return outputs as one JSON text, each digit of their data as it is."""
    stored = [_stored(row) for row in rows]
    if not scheduled:  # as former versions have it
        return msgspec.json.encode(stored).decode()
    later = [(*_stored(row), row.due) for row in scheduled]
    return msgspec.json.encode(_WithScheduled(stored, later)).decode()


def from_text(text: str) -> tuple[list[Row], list[ScheduledRow]]:
    """Return the outputs that `to_text` made a text of, and those that are scheduled."""
    if text.startswith("["):
        return [Row(*_row(one), None) for one in _decoder.decode(text)], []
    both = _scheduled_decoder.decode(text)
    return (
        [Row(*_row(one), None) for one in both.written],
        [ScheduledRow(*_row(one), one[5]) for one in both.scheduled],
    )


def _stored(row: Row | ScheduledRow) -> _Stored:
    id_, name, type_, data, metadata = row[:5]
    return id_, name, type_, msgspec.Raw(data.encode()), msgspec.Raw((metadata or "null").encode())


def _row(stored: _Stored | _Scheduled) -> tuple[uuid.UUID, str, str, str, str | None]:
    data, metadata = bytes(stored[3]).decode(), bytes(stored[4])
    return stored[0], stored[1], stored[2], data, _text(metadata)


def _text(metadata: bytes) -> str | None:
    return None if metadata == _NONE else metadata.decode()


def digest(text: str) -> str:
    """Return the digest of the text of a handling's outputs."""
    return hashlib.sha256(text.encode()).hexdigest()
