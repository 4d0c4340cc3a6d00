"""Which requests are in progress, in this process and in others.

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
from reservation.http.stored_requests import QUERIES
from reservation.postgres.connection import connect, connect_async
from reservation.postgres.error_translation import translated
from reservation.postgres.pooler import check_session


class InProgress:
    """The requests that this process is answering."""

    def __init__(self, database_url: str) -> None:
        """Prepare; the session begins with the first request.

        Args:
            database_url: of the database; a pooler has to give it a session of its own.
        """
        self._address = database_url
        self._held: set[RequestId] = set()
        self._connection: AsyncConnection[Any] | None = None
        self._opening = asyncio.Lock()

    async def take(self, request: RequestId) -> bool:
        """Return whether a request was not in progress, and now is.

        Raises:
            StoreError: the database cannot be reached, or gives no session.
        """
        if request in self._held:
            return False
        self._held.add(request)
        # Taken to its end even if the caller is cancelled, or the lock would stay.
        taking = asyncio.ensure_future(self._lock(request))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            with contextlib.suppress(StoreError):
                if await taking:
                    await self.release(request)
            raise

    async def release(self, request: RequestId) -> None:
        """Let others answer a request; one whose session has ended is free already."""
        with contextlib.suppress(StoreError):
            if self._connection is not None and not self._connection.closed:
                with translated():
                    await self._connection.execute(QUERIES["unlock"], request.lock)
        self._held.discard(request)

    async def close(self) -> None:
        """End the session, and with it all the locks."""
        if self._connection is not None:
            await self._connection.close()

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
                cursor = await connection.execute("SELECT pg_catalog.pg_backend_pid()")
                if await cursor.fetchone() != (connection.info.backend_pid,):
                    await asyncio.to_thread(_check_pooler, self._address)
                with translated():
                    await connection.execute(QUERIES["notice_the_end"])
                self._connection = connection
            return self._connection


def _check_pooler(address: str) -> None:
    with connect(address, autocommit=True) as one, connect(address, autocommit=True) as other:
        check_session(one, other)
