"""The statements of the store, shared by the sync and the async client.

A `Statement` is a query, its parameters, and a function that reads its rows. A read of several
batches is a generator of statements, to which each batch is sent. The clients only send statements
and wait. (The idea is that of sans-I/O; psycopg's own generators are the model.)
"""

import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from psycopg import Connection

from reservation.errors import StoreError
from reservation.messages.message import StoredMessage
from reservation.postgres.arrays import IntArray, TextArray, UuidArray
from reservation.postgres.error_translation import translated
from reservation.postgres.exchange.exchange import exchange
from reservation.postgres.exchange.request import Request
from reservation.postgres.queries import load_queries
from reservation.store.argument_checks import (
    check_batch_size,
    check_category,
    check_id,
    check_member,
    check_name,
    check_positions,
    check_starts,
)
from reservation.store.category_part import CategoryPart

T_co = TypeVar("T_co", covariant=True)

QUERIES = load_queries("reservation.store")

# The version of a stream that does not exist yet.
NO_STREAM = -1


# Any: rows are what the query's columns are.
@dataclass(frozen=True, slots=True)
class Statement(Generic[T_co]):
    """A query to send, and how to read the answer.

    Attributes:
        query: SQL with placeholders.
        parameters: their values.
        read: makes the result from the rows.
        ids: the ids of the messages that it writes; none if it reads.
        expects: the streams that it expects to be at a version.
        repeated: whether it may be prepared, because it only calls a function that is called again
            and again.
        committing: SQL to send in its place where it is a transaction of its own: it commits
            within, and a refusal may rest on what is not flushed yet. None if there is none.
    """

    query: bytes
    parameters: Sequence[Any]
    read: Callable[[Sequence[tuple[Any, ...]]], T_co]
    ids: Sequence[uuid.UUID] = ()
    expects: Collection[str] = ()
    repeated: bool = False
    committing: bytes | None = None

    @property
    def request(self) -> Request:
        """The request."""
        return Request(self.query, self.parameters)


# A read of several batches: the next statement, given the batch that the last one returned.
Reading = Generator[Statement[list[StoredMessage]], list[StoredMessage], None]


def run(connection: Connection[Any], statement: Statement[T_co]) -> T_co:
    """Run a statement on a connection, and return its result."""
    with translated(statement.ids, statement.expects):
        (answer,) = exchange(connection, [statement.request])
    return statement.read(answer.rows)


def run_together(connection: Connection[Any], statements: Sequence[Statement[Any]]) -> list[Any]:
    """Run statements that read, in one round trip, and return their results."""
    with translated():
        answers = exchange(connection, [statement.request for statement in statements])
    return [
        statement.read(answer.rows) for statement, answer in zip(statements, answers, strict=True)
    ]


def after(reading: Reading, batch: list[StoredMessage]) -> Statement[list[StoredMessage]] | None:
    """Return the statement that follows a batch; None at the end."""
    try:
        return reading.send(batch)
    except StopIteration:
        return None


def read_stream(stream_name: str, position: int, batch_size: int) -> Reading:
    """Read a stream to its end, batch by batch."""
    check_name(stream_name)
    check_positions([position])
    check_batch_size(batch_size)
    while True:
        batch = yield Statement(
            QUERIES["read_stream"], [stream_name, position, batch_size], _messages
        )
        if len(batch) < batch_size:
            return
        position = batch[-1].position + 1


def read_category(
    category: str,
    position: int,
    batch_size: int,
    correlation: str | None = None,
    consumer_group_member: int | None = None,
    consumer_group_size: int | None = None,
) -> Reading:
    """Read a category, or a part of it, to its end, batch by batch."""
    check_category(category)
    check_positions([position])
    check_batch_size(batch_size)
    check_member(consumer_group_member, consumer_group_size)
    part = [correlation, consumer_group_member, consumer_group_size]
    if correlation is not None:
        check_category(correlation)
    name = "read_category" if part == [None] * 3 else "read_category_part"
    while True:
        window = [category, position, batch_size]
        parameters = window if name == "read_category" else window + part
        batch = yield Statement(QUERIES[name], parameters, _messages)
        if len(batch) < batch_size:
            return
        position = batch[-1].global_position + 1


def read_part(
    category: str, part: CategoryPart, limit: int, max_bytes: int | None
) -> Statement[list[StoredMessage]]:
    """Return the statement that reads a batch of a part of a category."""
    check_category(category)
    parameters = [*part.parameters(category, limit), max_bytes]
    return Statement(QUERIES["read_part"], parameters, _messages, repeated=True)


def read_streams(positions: Mapping[str, int]) -> Statement[list[StoredMessage]]:
    """Return the statement that reads many streams to their ends."""
    check_starts(positions)
    names, starts = TextArray(list(positions)), IntArray(list(positions.values()))
    return Statement(QUERIES["read_streams"], [names, starts], _messages, repeated=True)


def last_message(stream_name: str, type_: str | None) -> Statement[list[StoredMessage]]:
    """Return the statement that reads the last message of a stream, or its last of one type."""
    if type_ is not None and not isinstance(type_, str):
        raise StoreError(f"The type of a message is a str, not a {type(type_).__name__}")
    return Statement(QUERIES["last_message"], [check_name(stream_name), type_], _messages)


def stream_version(stream_name: str) -> Statement[int]:
    """Return the statement that asks for the position of a stream's last message."""
    return Statement(
        QUERIES["stream_version"], [check_name(stream_name)], lambda rows: int(rows[0][0])
    )


def stored_ids(ids: Iterable[uuid.UUID]) -> Statement[dict[uuid.UUID, str]]:
    """Return the statement that asks which of these ids are stored, and in which stream."""
    return Statement(
        QUERIES["stored_ids"],
        [UuidArray([check_id(message_id) for message_id in ids])],
        dict,
    )


def lock_categories(stream_names: Sequence[str]) -> Statement[None]:
    """Return the statement that takes the locks of these streams' categories."""
    return Statement(QUERIES["lock_categories"], [TextArray(stream_names)], lambda _: None)


def readable(messages: Iterable[StoredMessage]) -> Iterator[StoredMessage]:
    """Give messages, up to the first that cannot be read."""
    for message in messages:
        message.check_readable()
        yield message


def _messages(rows: Sequence[tuple[Any, ...]]) -> list[StoredMessage]:
    return [StoredMessage(*row) for row in rows]
