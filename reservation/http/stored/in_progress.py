"""Requests in progress, in this process and in others.

A request is in progress while somebody holds its advisory lock. One session of the database holds
those of a whole process. The server ends it with the process, so a request is never in progress for
longer than the process that answers it, and no time limit has to be guessed.

The lock keeps two processes from doing the same at once, and nothing depends on it: a process that
lost its session goes on, and what it does again has been done already.
"""

import asyncio
import contextlib
from typing import Any

from psycopg import AsyncConnection

from reservation.errors import DatabaseUnavailableError, StoreError
from reservation.http.identity import RequestId
from reservation.http.stored.stored_requests import QUERIES
from reservation.postgres.connection import connect, connect_async
from reservation.postgres.error_translation import translated
from reservation.postgres.finishing import finished, started
from reservation.postgres.pooler import check_session


class InProgress:
    """The requests that this process is answering."""

    def __init__(self, database_url: str) -> None:
        self._address = database_url
        self._held: set[RequestId] = set()
        self._connection: AsyncConnection[Any] | None = None
        self._opening = asyncio.Lock()

    async def take(self, request: RequestId) -> bool:
        """Return whether a request was not in progress, and now is."""
        if request in self._held:
            return False
        self._held.add(request)
        taking = started(self._lock(request))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            await finished(self._give_up(request, taking))
            raise

    async def release(self, request: RequestId) -> None:
        """Let others answer a request, even if the caller is cancelled meanwhile."""
        await finished(self._unlock(request))

    async def close(self) -> None:
        """End the session, and with it all the locks."""
        if self._connection is not None:
            await self._connection.close()

    async def _give_up(self, request: RequestId, taking: asyncio.Task[bool]) -> None:
        with contextlib.suppress(StoreError):
            if await taking:
                await self._unlock(request)

    async def _unlock(self, request: RequestId) -> None:
        connection = self._connection
        try:
            if connection is not None and not connection.closed:
                with translated():
                    await connection.execute(QUERIES["unlock"], request.lock)
        except BaseException as error:
            if connection is not None:
                await connection.close()  # the lock ends with its session
            if not isinstance(error, StoreError):
                raise
        finally:
            self._held.discard(request)

    async def _lock(self, request: RequestId) -> bool:
        taken = False
        try:
            try:
                taken = await self._try_lock(request)
            except DatabaseUnavailableError:  # the session was lost since it was last used
                taken = await self._try_lock(request)
        finally:
            if not taken:
                self._held.discard(request)
        return taken

    async def _try_lock(self, request: RequestId) -> bool:
        connection = await self._session()
        with translated():
            cursor = await connection.execute(QUERIES["lock"], request.lock)
            ((taken,),) = await cursor.fetchall()
        return bool(taken)

    async def _session(self) -> AsyncConnection[Any]:
        async with self._opening:
            if self._connection is None or self._connection.closed:
                connection = await connect_async(
                    self._address, application_name="reservation http", autocommit=True
                )
                try:
                    await self._prepare(connection)
                except BaseException:
                    await connection.close()
                    raise
                self._connection = connection
            return self._connection

    async def _prepare(self, connection: AsyncConnection[Any]) -> None:
        with translated():
            cursor = await connection.execute("SELECT pg_catalog.pg_backend_pid()")
            if await cursor.fetchone() != (connection.info.backend_pid,):
                await asyncio.to_thread(_check_pooler, self._address)
            await connection.execute(QUERIES["notice_the_end"])


def _check_pooler(address: str) -> None:
    with connect(address, autocommit=True) as one, connect(address, autocommit=True) as other:
        check_session(one, other)
