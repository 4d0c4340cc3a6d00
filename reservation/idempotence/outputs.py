"""What a handler publishes, as the rows that are written, and kept with the state beside them."""

import hashlib
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
from psycopg import Connection, Cursor
from psycopg.rows import tuple_row

from reservation.codec import DEFAULT_MAX_BYTES
from reservation.errors import HandlerError, StoreError
from reservation.message import StoredMessage, followed_id
from reservation.store.errors import translated
from reservation.store.statements import prepare
from reservation.store.writing import Batch, Row, Write

_Stored = tuple[uuid.UUID, str, str, msgspec.Raw, msgspec.Raw]
_decoder = msgspec.json.Decoder(list[_Stored])
_NONE = b"null"


def outputs(
    message: StoredMessage,
    entity_stream: str,
    events: Sequence[object],
    further: Sequence[Write],
) -> list[Row]:
    """Return what the handler of a message publishes: its events, then its further messages.

    Args:
        message: the message that was handled.
        entity_stream: the stream that its events go to.
        events: what the handler returned.
        further: what it wrote besides.

    Raises:
        HandlerError: one of them can not be written, or expects a version. The state is stored
            before, so it must be sure that all of them can follow.
    """
    metadata = message.follow_metadata()
    writes = [
        Write(event, entity_stream, followed_id(message.id, entity_stream, ordinal), metadata)
        for ordinal, event in enumerate(events)
    ]
    for write in further:
        if write.expected_version is not None:
            raise HandlerError(
                f"The handler of {message} wrote to {write.stream_name} with an expected version; "
                f"with StateBased the state is stored first, and what is published must not fail "
                f"after that: leave expected_version out"
            )
    try:
        return Batch([*writes, *further], DEFAULT_MAX_BYTES).rows
    except StoreError as error:
        raise HandlerError(f"The handler of {message} can not publish: {error}") from error


def to_text(rows: Sequence[Row]) -> str:
    """Return outputs as one JSON text, each digit of their data as it is."""
    stored = [
        (id_, name, type_, msgspec.Raw(data.encode()), msgspec.Raw((metadata or "null").encode()))
        for id_, name, type_, data, metadata, _ in rows
    ]
    return msgspec.json.encode(stored).decode()


def from_text(text: str) -> list[Row]:
    """Return the outputs that `to_text` made a text of."""
    return [
        (id_, name, type_, bytes(data).decode(), _text(bytes(metadata)), None)
        for id_, name, type_, data, metadata in _decoder.decode(text)
    ]


# Any: connections differ in what their rows are.
def write(connection: Connection[Any], rows: Sequence[Row]) -> None:
    """Write outputs; those that are stored already are left as they are.

    Raises:
        MessageIdConflictError: an id is in use for other content.
        StoreError: the store refuses them otherwise.
    """
    if not rows:
        return
    statement = Batch.encoded(rows).statement()
    with translated(statement.ids, statement.expects):
        cursor = prepare(Cursor(connection, row_factory=tuple_row), statement)
        cursor.execute(statement.query, statement.parameters, prepare=False, binary=True)


def _text(metadata: bytes) -> str | None:
    return None if metadata == _NONE else metadata.decode()


def digest(text: str) -> str:
    """Return what tells the text of one handling's outputs from that of another's."""
    return hashlib.sha256(text.encode()).hexdigest()
