"""Checks of a caller's arguments, before anything is sent.

A value of the wrong type is named by its type and never shown, because it may be a message.
"""

import uuid
from collections.abc import Iterable, Mapping

from reservation.errors import EncodeError, StoreError, StreamNameError
from reservation.messages.message import MAX_POSITION, printable
from reservation.messages.metadata import Metadata
from reservation.messages.stream_name import MAX_BYTES, check, identifier
from reservation.messages.stream_name import category as category_of
from reservation.messages.stream_name import check_category as check_category_name


def check_name(name: object) -> str:
    """Return a name that a stream or a category can have."""
    if not isinstance(name, str):
        raise StreamNameError(f"The name of a stream is a str, not a {_kind(name)}")
    return check(name)


def check_stream(name: object) -> str:
    """Return a name that a stream can have."""
    checked = check_name(name)
    if not identifier(checked):
        raise StreamNameError(
            f"{checked!r} names no stream: it has no id; a message is written to a "
            f"stream, such as {category_of(checked)}-123"
        )
    return checked


def check_category(name: object) -> str:
    """Return a name that a category can have."""
    return check_category_name(check_name(name))


def check_expected(version: object, stream_name: str) -> None:
    """Refuse an expected version that no stream can be at."""
    if version is None:
        return
    if not _is_integer(version):
        raise StoreError(
            f"The expected version of {stream_name} is an int or None, not a {_kind(version)}"
        )
    if not -1 <= version < MAX_POSITION:  # type: ignore[operator]  # it is an integer
        raise StoreError(
            f"The expected version {version} of {stream_name} is impossible; give the position of "
            f"the stream's last message, or -1 for a stream that does not exist"
        )


def check_id(message_id: object) -> uuid.UUID:
    """Return the id of a message."""
    if not isinstance(message_id, uuid.UUID):
        raise StoreError(
            f"The id of a message is a uuid.UUID, not a {_kind(message_id)}; convert a str with "
            f"uuid.UUID(…)"
        )
    return message_id


def check_metadata(metadata: object, stream_name: str) -> Metadata:
    """Return the metadata of a message to that stream."""
    if not isinstance(metadata, Metadata):
        raise EncodeError(
            f"The metadata of a message for {stream_name} is a Metadata or None, not a "
            f"{_kind(metadata)}"
        )
    return metadata


def check_indexed(stream_name: str, correlation: str | None) -> None:
    """Refuse names that are too long for the index row that holds both of their categories."""
    if not correlation or len(stream_name) + len(correlation) <= MAX_BYTES // 4:  # UTF-8's longest
        return
    lengths = [len(category_of(name).encode()) for name in (stream_name, correlation)]
    if sum(lengths) > MAX_BYTES:
        raise EncodeError(
            f"The category of {printable(stream_name)} and that of its metadata's correlation "
            f"stream are {lengths[0]} and {lengths[1]} bytes long; the store takes {MAX_BYTES} "
            f"together"
        )


def check_positions(positions: Iterable[object]) -> None:
    """Refuse positions at which no read can begin."""
    for position in positions:
        if not _is_integer(position):
            raise StoreError(f"A position is an int, not a {_kind(position)}")
        if not 0 <= position <= MAX_POSITION:  # type: ignore[operator]  # it is an integer
            raise StoreError(f"There is no position {position}; positions begin at 0")


def check_starts(positions: object) -> None:
    """Refuse a mapping of streams to positions at which no read can begin."""
    if not isinstance(positions, Mapping):
        raise StoreError(
            f"Positions are a mapping of stream names to positions, not a {_kind(positions)}"
        )
    for name in positions:
        check_name(name)
    check_positions(positions.values())


def check_batch_size(size: object) -> None:
    """Refuse a batch size that is not a positive integer."""
    if not _is_integer(size):
        raise StoreError(f"The size of a batch is an int, not a {_kind(size)}")
    if not 1 <= size <= MAX_POSITION:  # type: ignore[operator]  # it is an integer
        raise StoreError(f"A batch of {size} messages cannot be read; read one or more")


def check_batch_bytes(size: object) -> None:
    """Refuse a number of bytes for a batch that is not a positive integer."""
    if not _is_integer(size):
        raise StoreError(f"The bytes of a batch are an int, not a {_kind(size)}")
    if not 1 <= size <= MAX_POSITION:  # type: ignore[operator]  # it is an integer
        raise StoreError(f"A batch of {size} bytes cannot be read; give it one byte or more")


def check_member(member: object, size: object) -> None:
    """Refuse a member that a consumer group of a size cannot have, as the server would."""
    if member is None and size is None:
        return
    for value in (member, size):
        if value is not None and not _is_integer(value):
            raise StoreError(
                f"The member and the size of a consumer group are an int each, not a {_kind(value)}"
            )
    if member is None or size is None or not 0 <= member < size <= MAX_POSITION:  # type: ignore[operator]
        raise StoreError(
            f"There is no member {member} in a consumer group of size {size}; name both, the "
            f"members of a group of 3 being 0, 1 and 2"
        )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: object) -> str:
    return type(value).__name__
