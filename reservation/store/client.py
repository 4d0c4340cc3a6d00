"""The client of the message store, with which senders write and readers read."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
from psycopg import Connection
from psycopg_pool import ConnectionPool

from reservation.messages.message import StoredMessage
from reservation.postgres import forks
from reservation.postgres.arrays import ArrayCursor
from reservation.postgres.connection import (
    check_address,
    check_alive,
    check_encoding,
    connect,
    connection_settings,
    set_for_sender,
)
from reservation.postgres.error_translation import (
    commits_at_once,
    may_commit_within,
    translated,
)
from reservation.postgres.exchange.exchange import exchange
from reservation.postgres.exchange.keeping_connection import keeps_statements
from reservation.postgres.exchange.request import Request
from reservation.postgres.sqlstates import race_constraint
from reservation.serialization.codec import DEFAULT_MAX_BYTES
from reservation.store import statements
from reservation.store.answers.listeners import Listeners
from reservation.store.answers.outcome import Outcome
from reservation.store.answers.question import QuestionMaker, question_of
from reservation.store.answers.waiting import wait
from reservation.store.source import (
    InTransaction,
    autocommits,
    check_source,
    connection_of,
    is_looked_up,
    is_of_psycopg,
)
from reservation.store.statements import QUERIES, Reading, Statement, readable
from reservation.store.writing.batch import WriteBatch, portions
from reservation.store.writing.position import WrittenPosition
from reservation.store.writing.scheduling import ScheduledRow, schedule_rows
from reservation.store.writing.sending import in_span
from reservation.store.writing.write import Row, Write
from reservation.store.writing.writer import Writer

T = TypeVar("T")

DEFAULT_BATCH_SIZE = 2000


class MessageStore(Writer):
    """Writes to and reads from the streams and categories of one database.

    Given a pool it takes a connection for each call and commits it. Given a connection or a session
    it takes part in the transaction of that, and committing is the caller's. `AsyncMessageStore` is
    the same for programs that run in an event loop.
    """

    def __init__(
        self,
        source: ConnectionPool[Connection[Any]] | InTransaction,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        """Prepare; nothing is asked of the database yet.

        Args:
            source: a pool or a connection of psycopg, or a connection or a session of SQLAlchemy.
            max_bytes: how long the JSON text of a message's data, and of its metadata, may be.

        Raises:
            StoreError: the source is something else, is of another driver or database, or is bound
                to several engines.
        """
        check_source(source)
        self._source = source
        self._max_bytes = max_bytes
        self._listeners: Listeners | None = None
        self._make_pool: Callable[[], forks.Pool] | None = None  # if the pool is its own
        self._is_new = False  # whether its own pool is to be opened
        self._is_inherited = False
        forks.after_fork(self, MessageStore._let_go)

    @classmethod
    def open(
        cls, database_url: str, *, max_connections: int = 4, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> Self:
        """Return a store with a pool of its own; close it, or use it in a ``with`` statement.

        Args:
            database_url: a libpq URL or connection string; empty for libpq's own defaults.
            max_connections: how many threads can use the store at one time without waiting.
            max_bytes: how long the JSON text of a message's data, and of its metadata, may be.

        Raises:
            DatabaseUnavailableError: the database cannot be reached.
        """
        check_address(database_url)
        connect(database_url).close()  # a pool keeps trying; a wrong address should not
        make_pool = partial(
            forks.Pool,
            database_url,
            min_size=1,
            max_size=max_connections,
            kwargs={**connection_settings(), "autocommit": True},  # a call is one round trip
            configure=set_for_sender,
            check=check_alive,
            open=False,
        )
        store = cls(make_pool(), max_bytes=max_bytes)
        store._make_pool = make_pool
        store._open_pool()
        return store

    @classmethod
    def django(cls, using: str = "default", *, max_bytes: int = DEFAULT_MAX_BYTES) -> Self:
        """Return a store that writes in the transaction of a Django connection.

        It can be made once for a whole program: each thread has its own connection.

        Args:
            using: the alias of the connection in ``DATABASES``.
            max_bytes: how long the JSON text of a message's data, and of its metadata, may be.

        Raises:
            StoreError: the connection is one to another database than PostgreSQL.
        """
        from django.db import connections
        from django.utils.connection import ConnectionProxy

        connection: Any = ConnectionProxy(connections, using)  # Any: Django has no types
        return cls(connection, max_bytes=max_bytes)

    def close(self) -> None:
        """Close the pool; a connection that the caller gave is left open."""
        forks.look()
        if self._is_inherited:
            return
        self._is_new = False
        if self._listeners is not None:
            self._listeners.close()
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

    def write_batch(self, writes: Iterable[Write]) -> list[WrittenPosition]:
        """Write messages to one or many streams, all or none, in one statement.

        A message whose id is already stored with the same stream, type and content is not written
        again; the position of the first is returned for it.

        Args:
            writes: the messages.

        Returns:
            The position of each in its stream, in the order given; see `write`.

        Raises:
            ExpectedVersionError: a stream is not at the version expected of it.
            MessageIdConflictError: an id is in use for other content.
            CommitUnknownError: the connection was lost before the answer came; write again with
                the ids that the error carries.
            EncodeError: a message does not hold what its class declares, holds what the store
                cannot hold, or is too long.
            StreamNameError: a name is not valid, or is that of a category.
        """
        with in_span(writes) as sent:
            batch = WriteBatch(sent, self._max_bytes)
            if not batch.ids:
                return []
            return self._run(batch.statement())

    def write_encoded(
        self, rows: Sequence[Row], before: Sequence[Request] = ()
    ) -> list[WrittenPosition]:
        """Write messages that are already encoded, each once, in the transaction at hand.

        Args:
            rows: the messages.
            before: what is to be sent before them, in one round trip.

        Returns:
            The position of each in its stream; see `write_batch`.
        """
        positions: list[WrittenPosition] = []
        for portion in portions(rows):
            positions += self._run(WriteBatch.encoded(portion).statement(), before)
            before = ()
        return positions

    def schedule_encoded(self, rows: Sequence[ScheduledRow]) -> float:
        """Schedule messages that are already encoded, each once; see `schedule_rows`."""
        return self._run(schedule_rows(rows))

    def read_stream(
        self, stream_name: str, *, position: int = 0, batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Iterator[StoredMessage]:
        """Read a stream to its end, holding one batch at a time.

        Args:
            stream_name: the stream to read.
            position: the first position to read, from 0.
            batch_size: how many messages to fetch at once.

        Raises:
            StreamNameError: the name is not valid.
            StoreError: an argument is out of range, or the database refuses or is away.
        """
        return self._read(statements.read_stream(stream_name, position, batch_size))

    def read_category(
        self,
        category: str,
        *,
        position: int = 1,
        batch_size: int = DEFAULT_BATCH_SIZE,
        correlation: str | None = None,
        consumer_group_member: int | None = None,
        consumer_group_size: int | None = None,
    ) -> Iterator[StoredMessage]:
        """Read a category to its end, holding one batch at a time.

        Args:
            category: the category to read.
            position: the first global position to read, from 1.
            batch_size: how many messages to fetch at once.
            correlation: only messages whose correlation stream is of this category.
            consumer_group_member: only the streams of this member, from 0, of a group that divides
                the category by the hash of the cardinal id.
            consumer_group_size: how many members the group has.

        Raises:
            StreamNameError: a category is not valid.
            StoreError: an argument is out of range, or the database refuses or is away.
        """
        return self._read(
            statements.read_category(
                category,
                position,
                batch_size,
                correlation,
                consumer_group_member,
                consumer_group_size,
            )
        )

    def read_streams(self, positions: Mapping[str, int]) -> list[StoredMessage]:
        """Read many streams to their ends, in one statement.

        Args:
            positions: the first position to read of each stream, by its name.

        Returns:
            The messages, those of each stream in order.

        Raises:
            StreamNameError: a name is not valid.
            StoreError: a position is out of range, or the database refuses or is away.
        """
        if not positions:
            return []
        return list(readable(self._run(statements.read_streams(positions))))

    def last_message(self, stream_name: str, type: str | None = None) -> StoredMessage | None:  # noqa: A002
        """Return the last message of a stream, or the last of a type; None if there is none.

        Args:
            stream_name: the stream.
            type: the name of the type; None for any.

        Raises:
            StreamNameError: the name is not valid.
            StoreError: the database refuses or is away.
        """
        return next(readable(self._run(statements.last_message(stream_name, type))), None)

    def stream_version(self, stream_name: str) -> int:
        """Return the position of a stream's last message, -1 if there is no such stream.

        Args:
            stream_name: the stream.

        Raises:
            StreamNameError: the name is not valid.
            StoreError: the database refuses or is away.
        """
        return self._run(statements.stream_version(stream_name))

    def stored_ids(self, ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, str]:
        """Return which of these message ids are stored, each with its stream.

        Args:
            ids: the ids.

        Raises:
            StoreError: one is not a UUID, or the database refuses or is away.
        """
        return self._run(statements.stored_ids(ids))

    def lock_categories(self, stream_names: Sequence[str]) -> None:
        """Take the locks of these streams' categories, for the rest of the transaction.

        They are taken in one sorted order, so that transactions that write several categories
        do not wait for each other in a circle.
        """
        self._run(statements.lock_categories(stream_names))

    def outcome(self, command: object, component: QuestionMaker | None = None) -> Outcome:
        """Return what became of a command, whenever and however often it was sent.

        Args:
            command: the command; or a question about one, as `Component.question` makes it.
            component: the component that handles it; not needed for a question.

        Raises:
            IdempotenceKeyError: the command has no key.
            MissingRightError: the role may neither read the log nor write to the category.
            StoreError: there is no component, or the database refuses or is away.
        """
        return self._run(question_of(command, component).statement()).outcome

    def wait_for(
        self, command: object, component: QuestionMaker | None = None, *, timeout: float = 10.0
    ) -> Outcome:
        """Wait until it is decided what became of a command, and return the outcome.

        Where notices are on, another connection waits for them, and is kept for later calls until
        the store is closed. Without notices, and behind a pooler, the question is asked again and
        again, at growing intervals.

        Args:
            command: as for `outcome`.
            component: as for `outcome`.
            timeout: how long to wait at most, in seconds. After that the outcome is returned as it
                is then, ``pending`` or ``unknown``.

        Raises:
            IdempotenceKeyError: the command has no key.
            MissingRightError: the role may neither read the log nor write to the category.
            StoreError: as for `outcome`, or the store's connection is in a transaction, or would
                begin one.
        """
        question = question_of(command, component)
        if self._listeners is None:
            self._listeners = Listeners()
        has_pool = isinstance(self._source, ConnectionPool)
        return wait(
            question, timeout, self._run, self._connection, self._listeners, has_pool=has_pool
        )

    def _read(self, reading: Reading) -> Iterator[StoredMessage]:
        # The names and numbers are checked now, not when the first message is asked for.
        statement: Statement[list[StoredMessage]] | None = next(reading)

        def batches() -> Iterator[StoredMessage]:
            following = statement
            while following is not None:
                batch = self._run(following)
                yield from readable(batch)
                following = statements.after(reading, batch)

        return batches()

    def _run(self, statement: Statement[T], before: Sequence[Request] = ()) -> T:
        with (
            translated(statement.ids, statement.expects) as sent,
            self._connection() as connection,
        ):
            sent.commits = commits_at_once(connection)
            if sent.commits and statement.ids and not is_of_psycopg(self._source):
                raise autocommits()
            check_encoding(connection)
            if before or (statement.repeated and keeps_statements(connection)):
                return statement.read(exchange(connection, [*before, statement.request])[-1].rows)
            query = statement.query
            if statement.committing is not None and may_commit_within(connection):
                query, sent.commits_within = statement.committing, True
            cursor = ArrayCursor(connection)
            try:
                cursor.execute(query, statement.parameters, prepare=False, binary=True)
            except psycopg.Error as error:
                if sent.commits_within and race_constraint(error):
                    cursor.execute(QUERIES["flush"], prepare=False)
                raise
            rows = cursor.fetchall()
            sent.commits = isinstance(self._source, ConnectionPool)  # which commits next
        return statement.read(rows)

    @contextmanager
    def _connection(self) -> Iterator[Connection[Any]]:
        forks.look()
        if self._is_inherited:
            raise forks.inherited("What this MessageStore was given", forks.STORE)
        if self._is_new:
            self._open_pool()
        if isinstance(self._source, ConnectionPool):
            with self._source.connection() as connection:
                yield connection
        else:
            yield connection_of(self._source)

    def _let_go(self) -> None:
        """Take a pool of this process's own, if the store opened it; called in a fork."""
        self._listeners = None
        if self._make_pool is None:
            self._is_inherited = not is_looked_up(self._source)
        elif isinstance(self._source, ConnectionPool) and not self._source.closed:
            forks.leave(self._source)
            self._source, self._is_new = self._make_pool(), True

    def _open_pool(self) -> None:
        if isinstance(self._source, ConnectionPool):
            self._source.open()
        self._is_new = False
