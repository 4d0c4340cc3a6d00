"""What a handler publishes, as the rows that are written, and kept with the state beside them."""

import hashlib
import uuid
from collections.abc import Sequence

import msgspec

from reservation.errors import HandlerError, StoreError
from reservation.handlers.returned import encode_events, encode_further
from reservation.messages.message import StoredMessage
from reservation.messages.written import WrittenAs, written_as
from reservation.serialization import codec
from reservation.store.writing import Row, Write, check_size

_Stored = tuple[uuid.UUID, str, str, msgspec.Raw, msgspec.Raw]
_decoder = msgspec.json.Decoder(list[_Stored])
_NONE = b"null"


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
        Row(id_, name, type_, bytes(data).decode(), _text(bytes(metadata)), None)
        for id_, name, type_, data, metadata in _decoder.decode(text)
    ]


def _text(metadata: bytes) -> str | None:
    return None if metadata == _NONE else metadata.decode()


def digest(text: str) -> str:
    """Return the digest of the text of a handling's outputs."""
    return hashlib.sha256(text.encode()).hexdigest()
