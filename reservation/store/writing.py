"""Writing: messages are encoded, checked, and made into a statement."""

import dataclasses
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from reservation.errors import EncodeError, MessageIdConflictError, RefusedError, StoreError
from reservation.messages.ids import uuid7s
from reservation.messages.metadata import Metadata
from reservation.messages.written import WrittenAs, written_as
from reservation.postgres.arrays import Array, IntArray, JsonArray, TextArray, UuidArray
from reservation.serialization import codec
from reservation.store.argument_checks import (
    check_expected,
    check_id,
    check_indexed,
    check_metadata,
    check_name,
    check_stream,
)
from reservation.store.statements import QUERIES, Statement

# A little less than PostgreSQL takes in one message of its protocol. It ends the connection of a
# client that sends more, and then it seems that the write may have been committed.
MOST_BYTES = 1_000_000_000
_PORTION = 4 << 20  # characters of data
_ROW_BYTES = 64  # of the id, the expected version and the lengths, at most


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
        message: an instance of a dataclass, whose name becomes the message type, unless the class
            has a ``__stored_as__``. Its ``__schema_version__`` is written to the metadata.
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


class WriteBatch:
    """Messages to be written together, all or none.

    Attributes:
        ids: the ids of the messages, in the order given; a retry within the batch repeats one.
        rows: the messages, each once.
        expects: the streams that have to be at an expected version.
    """

    def __init__(self, writes: Iterable[Write], max_bytes: int) -> None:
        """Encode messages.

        Args:
            writes: the messages; one may be in it twice, as a retry of itself.
            max_bytes: how long the JSON text of a message's data, and of its metadata, may be.

        Raises:
            StoreError: one of them cannot be written.
        """
        if not isinstance(writes, Iterable):
            raise StoreError(f"A batch is a list of Writes, not a {type(writes).__name__}")
        writes = list(writes)
        by_id: dict[uuid.UUID, Row] = {}
        self.ids: list[uuid.UUID] = []
        for write, new_id in zip(writes, uuid7s(len(writes)), strict=True):
            row = row_of(write, new_id, max_bytes)
            self.ids.append(row[0])
            known = by_id.setdefault(row[0], row)
            if known is not row and known[1:-1] != row[1:-1]:
                raise MessageIdConflictError(
                    f"Message id {row[0]} is in the batch twice, for different messages; "
                    f"give each an id of its own"
                )
        self.rows = list(by_id.values())
        self.expects = frozenset(row[1] for row in self.rows if row[-1] is not None)
        check_size(self.rows)

    @classmethod
    def encoded(cls, rows: Sequence[Row]) -> "WriteBatch":
        """Return the batch of messages that are already encoded, each once."""
        batch = cls((), 0)
        batch.ids = [row[0] for row in rows]
        batch.rows = list(rows)
        batch.expects = frozenset(row[1] for row in rows if row[-1] is not None)
        check_size(batch.rows)
        return batch

    def statement(self) -> Statement[list[int]]:
        """Return the statement that writes the batch.

        Its result is the position of each message in its stream, in the order given.
        """
        if len(self.rows) == 1:
            return Statement(
                QUERIES["write_message"],
                self.rows[0],
                lambda found: [found[0][0]] * len(self.ids),
                self.ids,
                self.expects,
                repeated=True,
                committing=QUERIES["commit_message"],
            )
        return Statement(
            QUERIES["write_messages"],
            self._arrays(),
            lambda found: self._in_order(found[0][0]),
            self.ids,
            self.expects,
            repeated=True,
            committing=QUERIES["commit_messages"],
        )

    def statement_or_fail(self) -> Statement[None]:
        """Return the statement that writes the batch, or fails where a message was written before.

        Each message has an expected version. A division by zero is how the statement fails.
        """
        versions = [row.expected_version for row in self.rows]
        expected = [-1 if version is None else version + 1 for version in versions]
        parameters: Sequence[Any]
        if len(self.rows) == 1:
            query, parameters = QUERIES["write_message_or_fail"], [*self.rows[0], expected[0]]
        else:
            query = QUERIES["write_messages_or_fail"]
            parameters = [*self._arrays(), IntArray(expected)]
        return Statement(query, parameters, lambda _: None, self.ids, self.expects, repeated=True)

    def statement_of_each(self) -> Statement[list[int | None]]:
        """Return the statement that writes each message as if it were written alone.

        Its result is the position of each row in its stream, None for one that is refused.
        """
        return Statement(
            QUERIES["write_each"],
            self._arrays(),
            lambda found: list(found[0][0]),
            self.ids,
            self.expects,
            committing=QUERIES["commit_each"],
        )

    def _arrays(self) -> list[Array | None]:
        ids, names, types, data, metadata, versions = zip(*self.rows, strict=True)
        return [
            UuidArray(ids),
            TextArray(names),
            TextArray(types),
            JsonArray(data),
            JsonArray(metadata),
            IntArray(versions) if self.expects else None,
        ]

    def _in_order(self, positions: list[int]) -> list[int]:
        """Return the positions of the messages in the order given from those of the rows."""
        if len(self.rows) == len(self.ids):
            return positions
        by_id = {row[0]: position for row, position in zip(self.rows, positions, strict=True)}
        return [by_id[message_id] for message_id in self.ids]


def portions(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Give rows in portions of so few bytes that the statement that writes one takes little memory.

    Args:
        rows: the messages, encoded, in their order.
    """
    begin, size = 0, 0
    for n, row in enumerate(rows):
        size += len(row.data)
        if size >= _PORTION:
            yield rows[begin : n + 1]
            begin, size = n + 1, 0
    if begin < len(rows):
        yield rows[begin:]


def check_size(rows: Sequence[Row]) -> None:
    """Refuse rows that are too long together for the server to take them at once.

    Args:
        rows: the messages, encoded.

    Raises:
        RefusedError: they are too long.
    """
    characters = sum(
        len(name) + len(type_) + len(data) + len(metadata or "")
        for _, name, type_, data, metadata, _ in rows
    )
    if 4 * characters + len(rows) * _ROW_BYTES <= MOST_BYTES:  # UTF-8's longest
        return
    size = sum(map(size_of, rows))
    if size > MOST_BYTES:
        raise RefusedError(
            f"The {len(rows)} messages are {size} bytes long together; the server takes "
            f"{MOST_BYTES} at once: write them in several batches"
        )


def size_of(row: Row) -> int:
    """Return how many bytes of a statement a message takes, at most."""
    return _ROW_BYTES + sum(len(text.encode()) for text in row[1:5] if text)


def to_one_stream(
    messages: object | Sequence[object],
    stream_name: str,
    message_id: uuid.UUID | None,
    metadata: Metadata | None,
    expected_version: int | None,
) -> list[Write]:
    """Return the writes of one message, or of several, to the end of a stream.

    Raises:
        StoreError: there is no message, or one id for several.
    """
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


def row_of(
    write: Write,
    new_id: uuid.UUID | None = None,
    max_bytes: int = codec.DEFAULT_MAX_BYTES,
    written: WrittenAs = written_as,
) -> Row:
    """Return a message, encoded.

    Args:
        write: the message.
        new_id: its id if it has none; None where it has one.
        max_bytes: how long the JSON text of its data, and of its metadata, may be.
        written: gives the type and the version that messages of a class are written with.

    Raises:
        StoreError: the message cannot be written.
    """
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
    """Return the metadata of a message with the version of its shape.

    Args:
        metadata: the metadata.
        type_: the type of the message.
        version: the version; None if none is written.

    Raises:
        EncodeError: it has another version, although the shape is that of the class.
    """
    if version is None or metadata.schema_version == version:
        return metadata
    if metadata.schema_version is not None:
        raise EncodeError(
            f"The metadata of a {type_} has a schema version, and its class is at version "
            f"{version}; leave schema_version out"
        )
    return dataclasses.replace(metadata, schema_version=version)


def encode_data(message: object, stream_name: str, max_bytes: int = codec.DEFAULT_MAX_BYTES) -> str:
    """Return the JSON text of a message.

    Args:
        message: a dataclass instance.
        stream_name: where it is to be written.
        max_bytes: how long the text may be.

    Raises:
        EncodeError: the message does not hold what its class declares, or holds what the store
            cannot hold.
        RefusedError: the message is a `Write`.
    """
    if isinstance(message, Write):
        raise RefusedError(f"A Write is no message for {stream_name}; hand it to write_batch")
    try:
        return codec.encode(message, max_bytes)
    except Exception as error:
        raise EncodeError(
            f"Cannot encode a {type(message).__name__} for {stream_name}: {codec.explain(error)}; "
            f"a message is a dataclass whose fields hold what their types say"
        ) from error


def encode_metadata(
    metadata: Metadata, type_: str, stream_name: str, max_bytes: int = codec.DEFAULT_MAX_BYTES
) -> str | None:
    """Return the JSON text of the metadata of a message, None if it is empty.

    Args:
        metadata: the metadata.
        type_: the type of the message.
        stream_name: where that is to be written.
        max_bytes: how long the text may be.

    Raises:
        EncodeError: the store cannot hold it.
    """
    try:
        text = metadata.encode(max_bytes)
    except Exception as error:
        raise EncodeError(
            f"Cannot encode a {type_} for {stream_name}, because of its metadata: "
            f"{codec.explain(error)}"
        ) from error
    check_indexed(stream_name, metadata.correlation_stream_name)
    return text
