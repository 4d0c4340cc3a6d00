"""A handler's outputs, as they are kept with the state."""

import uuid
from collections.abc import Sequence
from datetime import datetime

import msgspec

from reservation.errors import HandlerError, StoreError
from reservation.messages.message import StoredMessage
from reservation.serialization import codec
from reservation.store.writing.batch import check_size
from reservation.store.writing.scheduling import ScheduledRow
from reservation.store.writing.write import Row

_Stored = tuple[uuid.UUID, str, str, msgspec.Raw, msgspec.Raw]
_decoder = msgspec.json.Decoder(list[_Stored])
_Scheduled = tuple[uuid.UUID, str, str, msgspec.Raw, msgspec.Raw, datetime]
_NONE = b"null"


class _WithScheduled(msgspec.Struct):
    """The form of outputs of which some are scheduled; those without are a list."""

    written: list[_Stored]
    scheduled: list[_Scheduled]


_scheduled_decoder = msgspec.json.Decoder(_WithScheduled)


def check_outputs(
    message: StoredMessage, rows: Sequence[Row], scheduled: Sequence[ScheduledRow]
) -> None:
    """Refuse outputs that are too long together to be kept with the state."""
    try:
        check_size([*rows, *(Row(*row[:5], None) for row in scheduled)])
    except StoreError as error:
        raise HandlerError(f"The handler of {message} cannot publish: {error}") from error


def encode_state(state: object, message: StoredMessage) -> str:
    """Return the JSON text of the state that the handler of a message left."""
    try:
        return codec.encode(state)
    except Exception as error:
        raise HandlerError(
            f"The state that the handler of {message} left cannot be stored: {codec.explain(error)}"
        ) from error


def to_text(rows: Sequence[Row], scheduled: Sequence[ScheduledRow] = ()) -> str:
    """Return outputs as one JSON text, each digit of their data as it is."""
    stored = [_stored(row) for row in rows]
    if not scheduled:
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
