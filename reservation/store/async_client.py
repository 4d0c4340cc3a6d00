"""The client for programs that run in an event loop, such as asynchronous web applications."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import psycopg
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from reservation.errors import StoreError
from reservation.messages.message import StoredMessage
from reservation.postgres import forks
from reservation.postgres.arrays import AsyncArrayCursor
from reservation.postgres.connection import (
    check_address,
    check_alive_async,
    check_encoding,
    connect_async,
    connection_settings,
    set_for_sender_async,
)
from reservation.postgres.error_translation import (
    commits_at_once,
    may_commit_within,
    translated,
)
from reservation.postgres.finishing import finished
from reservation.postgres.sqlstates import race_constraint
from reservation.serialization.codec import DEFAULT_MAX_BYTES
from reservation.store import statements
from reservation.store.answers.async_listener import AsyncListener
from reservation.store.answers.async_waiting import wait_async
from reservation.store.answers.outcome import Outcome
from reservation.store.answers.question import QuestionMaker, question_of
from reservation.store.client import DEFAULT_BATCH_SIZE
from reservation.store.source import (
    AsyncInTransaction,
    async_connection_of,
    autocommits,
    check_async_source,
    is_looked_up,
    is_of_psycopg,
)
from reservation.store.statements import QUERIES, Reading, Statement, readable
from reservation.store.writing.batch import WriteBatch
from reservation.store.writing.gathering import Gathering
from reservation.store.writing.position import WrittenPosition
from reservation.store.writing.sending import in_span
from reservation.store.writing.write import Write
from reservation.store.writing.writer import AsyncWriter

T = TypeVar("T")


class AsyncMessageStore(AsyncWriter):
    """`MessageStore` in an event loop: the same names, arguments, results and errors.

    Given a pool it takes a connection for each call and commits it. Given a connection or a session
    it takes part in the transaction of that, and committing is the caller's.
    """

    @overload
    def __init__(
        self,
        source: AsyncConnectionPool[AsyncConnection[Any]],
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        gather: bool = False,
    ) -> None: ...

    @overload
    def __init__(
        self, source: AsyncInTransaction, *, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None: ...

    def __init__(
        self,
        source: AsyncConnectionPool[AsyncConnection[Any]] | AsyncInTransaction,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        gather: bool = False,
    ) -> None:
        """Prepare; nothing is asked of the database yet.

        Args:
            source: an asynchronous pool or connection of psycopg, or an `AsyncConnection` or
                `AsyncSession` of SQLAlchemy.
            max_bytes: how long the JSON text of a message's data, and of its metadata, may be.
            gather: whether messages that several tasks write to a category at the same time are
                sent together, one statement after the other, each of at most 500 messages and one
                megabyte. Each task gets its own position or error. Several messages of one call are
                sent as always.

        Raises:
            StoreError: the source is something else, is of another driver or database, is bound to
                several engines, or is no pool and writes are to be gathered.
        """
        check_async_source(source)
        if gather and not isinstance(source, AsyncConnectionPool):
            raise StoreError(
                "Writes on a connection of the caller's are part of its transaction, so they "
                "cannot be gathered; give an AsyncConnectionPool, or leave gather out"
            )
        self._source = source
        self._max_bytes = max_bytes
        self._listener: AsyncListener | None = None
        self._gathering = Gathering(self._send) if gather else None
        self._make_pool: Callable[[], AsyncConnectionPool[AsyncConnection[Any]]] | None = None
        self._is_new = False  # whether its own pool is to be opened
        self._is_inherited = False
        forks.after_fork(self, AsyncMessageStore._let_go)

    @classmethod
    async def open(
        cls,
        database_url: str,
        *,
        max_connections: int = 4,
        max_bytes: int = DEFAULT_MAX_BYTES,
        gather: bool = False,
    ) -> Self:
        """Return a store with a pool of its own; close it, or use it in ``async with``.

        Args:
            database_url: a libpq URL or connection string; empty for libpq's own defaults.
            max_connections: how many tasks can use the store at one time without waiting.
            max_bytes: how long the JSON text of a message's data, and of its metadata, may be.
            gather: whether writes of several tasks are sent in one statement; see `__init__`.

        Raises:
            DatabaseUnavailableError: the database cannot be reached.
        """
        check_address(database_url)
        await (await connect_async(database_url)).close()
        make_pool: Callable[[], AsyncConnectionPool[AsyncConnection[Any]]] = partial(
            AsyncConnectionPool,
            database_url,
            min_size=1,
            max_size=max_connections,
            kwargs={**connection_settings(), "autocommit": True},  # a call is one round trip
            configure=set_for_sender_async,
            check=check_alive_async,
            open=False,
        )
        store = cls(make_pool(), max_bytes=max_bytes, gather=gather)
        store._make_pool = make_pool
        await store._open_pool()
        return store

    async def close(self) -> None:
        """Close the pool; a connection that the caller gave is left open."""
        forks.look()
        if not self._is_inherited:
            self._is_new = False
            await finished(self._close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def write_batch(self, writes: Iterable[Write]) -> list[WrittenPosition]:
        """Write messages to one or many streams; see `MessageStore.write_batch`."""
        with in_span(writes) as sent:
            batch = WriteBatch(sent, self._max_bytes)
            if not batch.ids:
                return []
            if self._gathering is not None and len(batch.rows) == 1:
                position = await self._gathering.write(batch.rows[0])
                if position is not None:
                    return [position] * len(batch.ids)
            return await self._run(batch.statement())

    def read_stream(
        self, stream_name: str, *, position: int = 0, batch_size: int = DEFAULT_BATCH_SIZE
    ) -> AsyncIterator[StoredMessage]:
        """Read a stream to its end; see `MessageStore.read_stream`."""
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
    ) -> AsyncIterator[StoredMessage]:
        """Read a category, or a part of it, to its end; see `MessageStore.read_category`."""
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

    async def read_streams(self, positions: Mapping[str, int]) -> list[StoredMessage]:
        """Read many streams to their ends; see `MessageStore.read_streams`."""
        found = await self._run(statements.read_streams(positions)) if positions else []
        return list(readable(found))

    async def last_message(
        self,
        stream_name: str,
        type: str | None = None,  # noqa: A002
    ) -> StoredMessage | None:
        """Return the last message of a stream, or of a type; see `MessageStore.last_message`."""
        found = await self._run(statements.last_message(stream_name, type))
        return next(readable(found), None)

    async def stream_version(self, stream_name: str) -> int:
        """Return the position of a stream's last message; see `MessageStore.stream_version`."""
        return await self._run(statements.stream_version(stream_name))

    async def outcome(self, command: object, component: QuestionMaker | None = None) -> Outcome:
        """Return what became of a command; see `MessageStore.outcome`."""
        return (await self._run(question_of(command, component).statement())).outcome

    async def wait_for(
        self,
        command: object,
        component: QuestionMaker | None = None,
        *,
        timeout: float = 10.0,
    ) -> Outcome:
        """Wait until it is decided what became of a command; see `MessageStore.wait_for`.

        All tasks of a store that wait share one further connection, on which notices arrive.
        """
        question = question_of(command, component)
        if self._listener is None:
            self._listener = AsyncListener()
        has_pool = isinstance(self._source, AsyncConnectionPool)
        try:
            return await wait_async(
                question, timeout, self._run, self._connection, self._listener, has_pool=has_pool
            )
        finally:
            if not has_pool:  # nobody need close such a store
                await self._listener.close()

    def _read(self, reading: Reading) -> AsyncIterator[StoredMessage]:
        statement: Statement[list[StoredMessage]] | None = next(reading)

        async def batches() -> AsyncIterator[StoredMessage]:
            following = statement
            while following is not None:
                batch = await self._run(following)
                for message in readable(batch):
                    yield message
                following = statements.after(reading, batch)

        return batches()

    async def _run(self, statement: Statement[T]) -> T:
        return await self._send(lambda: statement)

    async def _send(self, make: Callable[[], Statement[T]]) -> T:
        """Send the statement that is made once there is a connection; return its result."""
        with translated() as exchange:
            async with self._connection() as connection:
                check_encoding(connection)
                statement = make()
                exchange.ids, exchange.expects = statement.ids, statement.expects
                exchange.commits = commits_at_once(connection)
                if exchange.commits and statement.ids and not is_of_psycopg(self._source):
                    raise autocommits()
                query = statement.query
                if statement.committing is not None and may_commit_within(connection):
                    query, exchange.commits_within = statement.committing, True
                cursor = AsyncArrayCursor(connection)
                try:
                    await cursor.execute(query, statement.parameters, prepare=False, binary=True)
                except psycopg.Error as error:
                    if exchange.commits_within and race_constraint(error):
                        await cursor.execute(QUERIES["flush"], prepare=False)
                    raise
                rows = await cursor.fetchall()
                exchange.commits = isinstance(self._source, AsyncConnectionPool)
        return statement.read(rows)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        forks.look()
        if self._is_inherited:
            raise forks.inherited("What this AsyncMessageStore was given", forks.STORE)
        if self._is_new:
            await self._open_pool()
        if isinstance(self._source, AsyncConnectionPool):
            async with self._source.connection() as connection:
                yield connection
        else:
            yield await async_connection_of(self._source)

    async def _close(self) -> None:
        if self._listener is not None:
            await self._listener.close()
        if isinstance(self._source, AsyncConnectionPool):
            await self._source.close()

    def _let_go(self) -> None:
        """Take a pool of this process's own, if the store opened it; called in a fork."""
        self._listener = None
        if self._gathering is not None:
            self._gathering = Gathering(self._send)
        if self._make_pool is None:
            self._is_inherited = not is_looked_up(self._source)
        elif isinstance(self._source, AsyncConnectionPool) and not self._source.closed:
            forks.leave(self._source)
            self._source, self._is_new = self._make_pool(), True

    async def _open_pool(self) -> None:
        if isinstance(self._source, AsyncConnectionPool):
            await self._source.open()
        self._is_new = False
