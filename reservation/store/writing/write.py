"""A message to be written, and the row that it is encoded into."""

import dataclasses
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from reservation.errors import EncodeError, RefusedError, StoreError
from reservation.messages.message import StoredMessage
from reservation.messages.metadata import Metadata
from reservation.messages.written import WrittenAs, written_as
from reservation.serialization import codec
from reservation.store.argument_checks import (
    check_expected,
    check_id,
    check_indexed,
    check_metadata,
    check_name,
    check_stream,
)


class Row(NamedTuple):
    """One message to be written, encoded; the attributes are those of a `Write`."""

    id: uuid.UUID
    stream_name: str
    type: str
    data: str
    metadata: str | None
    expected_version: int | None


@dataclass(frozen=True, slots=True)
class Write:
    """One message to be written.

    Attributes:
        message: an instance of a message class, whose name becomes the message type, unless it has
            a ``__stored_as__``. Its ``__schema_version__`` is written to the metadata.
        stream_name: where to.
        id: the caller's id; writing the same id and content again is harmless. A new UUID if None.
        metadata: what caused it and what it belongs to; None for none.
        expected_version: the position of the stream's last message, -1 if the stream must not
            exist, None if it does not matter.
    """

    message: object
    stream_name: str
    id: uuid.UUID | None = None
    metadata: Metadata | None = None
    expected_version: int | None = None


class Receiver(Protocol):
    """Knows the streams of its commands: a component."""

    def command_stream(self, command: Any, /) -> str:  # Any: it refuses what it does not handle
        """Return the stream that a command is sent to."""
        ...


def stream_to(command: object, component: Receiver, method: str) -> str:
    """Return the stream that a component reads a command from."""
    if not hasattr(component, "command_stream"):
        raise StoreError(
            f"{method}.send takes a command and the component that handles it, not a "
            f"{type(component).__name__}; {method}.write takes the name of a stream"
        )
    return component.command_stream(command)


def to_component(
    command: object,
    component: Receiver,
    message_id: uuid.UUID | None,
    metadata: Metadata | None,
    expected_version: int | None,
) -> list[Write]:
    """Return the write of a command to the stream that its component reads it from."""
    stream_name = stream_to(command, component, "store")
    return [Write(command, stream_name, message_id, metadata, expected_version)]


def to_one_stream(
    messages: object | Sequence[object],
    stream_name: str,
    message_id: uuid.UUID | None,
    metadata: Metadata | None,
    expected_version: int | None,
) -> list[Write]:
    """Return the writes of one message, or of several, to the end of a stream."""
    if not isinstance(messages, list | tuple):
        return [Write(messages, stream_name, message_id, metadata, expected_version)]
    if message_id is not None:
        raise StoreError("One id cannot serve several messages; give each its own in a Write")
    if not messages:
        raise StoreError(f"There is no message to write to {check_name(stream_name)}")
    check_expected(expected_version, check_name(stream_name))
    return [
        Write(
            message,
            stream_name,
            None,
            metadata,
            None if expected_version is None else expected_version + n,
        )
        for n, message in enumerate(messages)
    ]


def check_later(writes: list[Write]) -> list[Write]:
    """Refuse what cannot be written later: several messages, or one with an expected version."""
    if len(writes) > 1:
        raise StoreError("One call schedules one message; call once for each message")
    if writes[0].expected_version is not None:
        raise StoreError(
            "A scheduled message cannot have an expected version; leave expected_version out"
        )
    return writes


def row_of(
    write: Write,
    new_id: uuid.UUID | None = None,
    max_bytes: int = codec.DEFAULT_MAX_BYTES,
    written: WrittenAs = written_as,
) -> Row:
    """Return a message, encoded."""
    if not isinstance(write, Write):
        raise StoreError(f"A batch holds Writes, not a {type(write).__name__}")
    stream_name, expected = check_stream(write.stream_name), write.expected_version
    message_id = check_id(new_id if write.id is None else write.id)
    check_expected(expected, stream_name)
    data = encode_data(write.message, stream_name, max_bytes)
    name, version = written(type(write.message))
    metadata = None
    if write.metadata is not None or version is not None:
        known = Metadata() if write.metadata is None else write.metadata
        known = with_version(check_metadata(known, stream_name), name, version)
        metadata = encode_metadata(known, name, stream_name, max_bytes)
    return Row(message_id, stream_name, name, data, metadata, expected)


def with_version(metadata: Metadata, type_: str, version: int | None) -> Metadata:
    """Return the metadata of a message with the version of its shape."""
    if version is None or metadata.schema_version == version:
        return metadata
    if metadata.schema_version is not None:
        raise EncodeError(
            f"The metadata of a {type_} has a schema version, and its class is at version "
            f"{version}; leave schema_version out"
        )
    return dataclasses.replace(metadata, schema_version=version)


def encode_data(message: object, stream_name: str, max_bytes: int = codec.DEFAULT_MAX_BYTES) -> str:
    """Return the JSON text of a message."""
    if isinstance(message, _NO_MESSAGES):
        raise _no_message(message, stream_name)
    try:
        return codec.encode(message, max_bytes)
    except Exception as error:
        raise EncodeError(
            f"Cannot encode a {type(message).__name__} for {stream_name}: {codec.explain(error)}; "
            f"the fields of a message hold what their types say"
        ) from error


_NO_MESSAGES = (Write, StoredMessage)


def _no_message(given: object, stream_name: str) -> StoreError | EncodeError:
    if isinstance(given, Write):
        return RefusedError(
            f"Cannot write a Write to {stream_name} as a message; pass it to write_batch"
        )
    return EncodeError(
        f"Cannot encode a StoredMessage for {stream_name}: it is a message as it is read; decode "
        f"it, and write that"
    )


def encode_metadata(
    metadata: Metadata, type_: str, stream_name: str, max_bytes: int = codec.DEFAULT_MAX_BYTES
) -> str | None:
    """Return the JSON text of the metadata of a message, None if it is empty."""
    try:
        text = metadata.encode(max_bytes)
    except Exception as error:
        raise EncodeError(
            f"Cannot encode a {type_} for {stream_name}, because of its metadata: "
            f"{codec.explain(error)}"
        ) from error
    check_indexed(stream_name, metadata.correlation_stream_name)
    return text
