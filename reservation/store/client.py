"""The client of the message store: what a sender writes with and a reader reads with."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from psycopg import Connection
from psycopg_pool import ConnectionPool

from reservation import codec
from reservation.errors import EncodeError, MessageIdConflictError, StoreError, StreamNameError
from reservation.message import StoredMessage
from reservation.metadata import Metadata
from reservation.queries import load_queries
from reservation.store.connection import check_address, connect, connection_settings
from reservation.store.errors import translated
from reservation.stream_name import category, check, check_category, identifier
from reservation.uuid7 import uuid7

_QUERIES = load_queries("reservation.store")

# The version of a stream that does not exist yet.
NO_STREAM = -1

DEFAULT_BATCH_SIZE = 1000


@dataclass(frozen=True, slots=True)
class Write:
    """One message to be written.

    Attributes:
        message: an instance of a dataclass, whose name becomes the message type.
        stream_name: where to.
        id: the caller's id; writing the same id and content again is harmless. A new UUID if None.
        metadata: what caused it, what it belongs to.
        expected_version: the position of the stream's last message, -1 if the stream must not
            exist, None if it does not matter.
    """

    message: object
    stream_name: str
    id: uuid.UUID | None = None
    metadata: Metadata | None = None
    expected_version: int | None = None


class MessageStore:
    """Writes to and reads from the streams and categories of one database.

    Given a pool it takes a connection for each call and commits it. Given a connection it takes
    part in whatever transaction that connection is in, and committing is the caller's.
    """

    def __init__(self, source: ConnectionPool[Connection[Any]] | Connection[Any]) -> None:
        self._source = source

    @classmethod
    def open(cls, database_url: str, *, max_connections: int = 4) -> Self:
        """Return a store with a pool of its own; close it, or use it in a ``with`` statement.

        Args:
            database_url: a libpq URL or connection string; empty for libpq's own defaults.
            max_connections: how many threads can use the store at one time without waiting.

        Raises:
            DatabaseUnavailableError: the database can not be reached.
        """
        check_address(database_url)
        connect(database_url).close()  # a pool keeps trying; a wrong address should not
        pool = ConnectionPool(
            database_url,
            min_size=1,
            max_size=max_connections,
            kwargs=connection_settings(),
            open=True,
        )
        return cls(pool)

    def close(self) -> None:
        """Close the pool; a connection that the caller gave is left open."""
        if isinstance(self._source, ConnectionPool):
            self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def write(
        self,
        message: object | Sequence[object],
        stream_name: str,
        *,
        id: uuid.UUID | None = None,  # noqa: A002  the field's word
        metadata: Metadata | None = None,
        expected_version: int | None = None,
    ) -> int:
        """Write one message, or several at once, to the end of a stream.

        Args:
            message: a dataclass instance, or a sequence of them.
            stream_name: the stream to write to.
            id: the id of a single message; see `Write`.
            metadata: the metadata of the message, or of each of them.
            expected_version: of the stream, before the first of them.

        Returns:
            The position in the stream of the last one, from 0.

        Raises:
            ExpectedVersionError: the stream is not at the expected version; nothing is written.
            MessageIdConflictError: the id is in use for other content.
            StreamNameError: the name is that of a category, or no name at all.
        """
        several = isinstance(message, list | tuple)
        messages: Sequence[object] = message if isinstance(message, list | tuple) else [message]
        if several and id is not None:
            raise StoreError("One id can not serve several messages; give each its own in a Write")
        writes = [
            Write(
                one,
                stream_name,
                id,
                metadata,
                None if expected_version is None else expected_version + n,
            )
            for n, one in enumerate(messages)
        ]
        positions = self.write_batch(writes)
        if not positions:
            raise StoreError(f"There is no message to write to {stream_name}")
        return positions[-1]

    def write_initial(
        self,
        message: object,
        stream_name: str,
        *,
        id: uuid.UUID | None = None,  # noqa: A002  the field's word
        metadata: Metadata | None = None,
    ) -> int:
        """Write the first message of a stream that must not exist yet.

        Raises:
            ExpectedVersionError: the stream exists.
        """
        return self.write(
            message, stream_name, id=id, metadata=metadata, expected_version=NO_STREAM
        )

    def write_batch(self, writes: Iterable[Write]) -> list[int]:
        """Write messages to one or many streams, all or none, in one statement.

        A message whose id is stored already with the same stream, type and content is not written
        again; the position of the first is returned for it.

        Returns:
            The position of each in its stream, in the order given.

        Raises:
            ExpectedVersionError: a stream is not at the version expected of it.
            MessageIdConflictError: an id is in use for other content.
            StreamNameError: a name is that of a category, or no name at all.
        """
        ids = []
        rows: dict[uuid.UUID, tuple[Any, ...]] = {}
        for row in map(_row, writes):
            message_id, *content, _ = row
            ids.append(message_id)
            if rows.setdefault(message_id, row)[1:-1] != tuple(content):
                raise MessageIdConflictError(
                    f"Message id {message_id} stands twice in the batch, for different messages; "
                    f"give each an id of its own"
                )
        if not ids:
            return []
        columns: list[list[Any]] = [list(column) for column in zip(*rows.values(), strict=True)]
        with self._connection() as connection:
            written = connection.execute(_QUERIES["write_batch"], columns).fetchall()
        positions = dict(zip(rows, (row[0] for row in written), strict=True))
        return [positions[message_id] for message_id in ids]

    def stored_ids(self, ids: Iterable[uuid.UUID]) -> list[uuid.UUID]:
        """Return those of these message ids that are stored."""
        with self._connection() as connection:
            rows = connection.execute(_QUERIES["stored_ids"], [list(ids)]).fetchall()
        return [row[0] for row in rows]

    def lock_categories(self, stream_names: Sequence[str]) -> None:
        """Take the locks of these streams' categories, for the rest of the transaction.

        They are taken in one sorted order, so that transactions that write several categories
        do not wait for each other in a circle.
        """
        with self._connection() as connection:
            connection.execute(_QUERIES["lock_categories"], [list(stream_names)])

    def read_stream(
        self, stream_name: str, *, position: int = 0, batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Iterator[StoredMessage]:
        """Read a stream to its end, holding one batch at a time.

        Args:
            stream_name: the stream to read.
            position: the first position to read, from 0.
            batch_size: how many messages to fetch at once.
        """
        check(stream_name)
        while True:
            batch = self._fetch(_QUERIES["read_stream"], [stream_name, position, batch_size])
            yield from batch
            if len(batch) < batch_size:
                return
            position = batch[-1].position + 1

    def read_category(
        self, category: str, *, position: int = 1, batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Iterator[StoredMessage]:
        """Read a category to its end, holding one batch at a time.

        Args:
            category: the category to read.
            position: the first global position to read, from 1.
            batch_size: how many messages to fetch at once.
        """
        while True:
            batch = self.category_batch(category, position, batch_size)
            yield from batch
            if len(batch) < batch_size:
                return
            position = batch[-1].global_position + 1

    def category_batch(self, category: str, position: int, limit: int) -> list[StoredMessage]:
        """Return up to ``limit`` messages of a category from a global position on."""
        return self._fetch(_QUERIES["read_category"], [check_category(category), position, limit])

    def read_streams(self, positions: Mapping[str, int]) -> list[StoredMessage]:
        """Read many streams to their ends, in one statement.

        Args:
            positions: the first position to read of each stream, by its name.

        Returns:
            The messages, those of one stream in order.
        """
        if not positions:
            return []
        return self._fetch(_QUERIES["read_streams"], [list(positions), list(positions.values())])

    def last_message(self, stream_name: str, type: str | None = None) -> StoredMessage | None:  # noqa: A002
        """Return the last message of a stream, or its last of one type, if there is one."""
        batch = self._fetch(_QUERIES["last_message"], [check(stream_name), type])
        return batch[0] if batch else None

    def stream_version(self, stream_name: str) -> int:
        """Return the position of a stream's last message, -1 if there is no such stream."""
        with self._connection() as connection:
            rows = connection.execute(_QUERIES["stream_version"], [check(stream_name)]).fetchall()
        return NO_STREAM if rows[0][0] is None else int(rows[0][0])

    def _fetch(self, query: bytes, parameters: Sequence[object]) -> list[StoredMessage]:
        with self._connection() as connection:
            return [StoredMessage(*row) for row in connection.execute(query, parameters)]

    @contextmanager
    def _connection(self) -> Iterator[Connection[Any]]:
        with translated():
            if isinstance(self._source, Connection):
                yield self._source
            else:
                with self._source.connection() as connection:
                    yield connection


def _row(write: Write) -> tuple[uuid.UUID, str, str, str, str | None, int | None]:
    if not identifier(check(write.stream_name)):
        raise StreamNameError(
            f"{write.stream_name!r} names no stream: it has no id; a message is written to a "
            f"stream, such as {category(write.stream_name)}-123"
        )
    name = type(write.message).__name__
    try:
        data = codec.encode(write.message)
        metadata = write.metadata.encode() if write.metadata else None
    except Exception as error:
        raise EncodeError(
            f"Cannot encode a {name} for {write.stream_name}: {codec.explain(error)}; a message is "
            f"a dataclass whose fields hold what their types say"
        ) from error
    return (
        write.id or uuid7(),
        write.stream_name,
        name,
        data,
        metadata,
        write.expected_version,
    )
