"""The connections of one consumer's async handlers: a bounded pool, opened when one asks first."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from consumers.runtime.event_loop import EventLoop
from reservation.postgres.connection import (
    check_alive_async,
    connection_settings,
    set_for_sender_async,
)
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.runtime")

# As many as the calls of one handler that run at a time by default.
MOST = 10


class HandlerConnections:
    """Gives connections in the event loop of a consumer, and closes them with it."""

    def __init__(self, address: str, application_name: str, loop: EventLoop) -> None:
        self._address = address
        self._application_name = application_name
        self._pool: AsyncConnectionPool[AsyncConnection[Any]] | None = None
        self._opening: asyncio.Task[None]
        loop.closing = self._close

    # Any: connections differ in what their rows are.
    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Give a connection whose transaction is committed in the end, or rolled back."""
        if self._pool is None:
            self._pool = AsyncConnectionPool(
                self._address,
                min_size=0,
                max_size=MOST,
                kwargs=connection_settings(self._application_name),
                configure=_configure,
                reset=_reset,
                check=check_alive_async,
                name=self._application_name,
                open=False,
            )
            # In a context of their own, its tasks do not belong to the handler that asks first.
            self._opening = asyncio.create_task(self._pool.open(), context=Context())
        await asyncio.shield(self._opening)  # a call that is cancelled does not end it
        async with self._pool.connection() as connection:
            yield connection

    async def _close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()


async def _configure(connection: AsyncConnection[Any]) -> None:
    await set_for_sender_async(connection)
    await connection.execute(_QUERIES["handler_settings"])
    await connection.commit()


async def _reset(connection: AsyncConnection[Any]) -> None:
    """Let nothing that a block has changed pass to the next one."""
    # What an attribute or an adapter was changed to is only in this object.
    AsyncConnection.__init__(connection, connection.pgconn)
    connection.prepare_threshold = connection_settings()["prepare_threshold"]
    await connection.set_autocommit(True)
    await connection.execute(_QUERIES["discard"])
    await _configure(connection)
    await connection.set_autocommit(False)
