"""The connections of one event loop: a pool for the store, and the session of the locks."""

import asyncio

from reservation.http.in_progress import InProgress
from reservation.store.async_client import AsyncMessageStore


class Connections:
    """What a middleware has open, opened when it is first needed.

    A middleware is made before there is an event loop, and in tests there may be several, one after
    another. Connections of a loop that has ended are left to it.
    """

    def __init__(self, database_url: str, max_connections: int) -> None:
        """Prepare.

        Args:
            database_url: the address of the database.
            max_connections: how many the pool may hold; there is one more for the locks.
        """
        self._address = database_url
        self._max_connections = max_connections
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Future[AsyncMessageStore] | None = None
        self._in_progress: InProgress | None = None

    async def open(self) -> tuple[AsyncMessageStore, InProgress]:
        """Return them, opened.

        Raises:
            DatabaseUnavailableError: the database cannot be reached.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._opening is None or self._in_progress is None:
            self._loop = loop
            self._in_progress = InProgress(self._address)
            self._opening = asyncio.ensure_future(
                AsyncMessageStore.open(self._address, max_connections=self._max_connections)
            )
        opening = self._opening
        try:
            return await asyncio.shield(opening), self._in_progress
        except Exception:
            if self._opening is opening:
                self._opening = None  # the next request tries again
            raise

    async def close(self) -> None:
        """Close them; they are opened again if they are needed."""
        if self._loop is asyncio.get_running_loop() and self._opening and self._in_progress:
            opening, self._opening = self._opening, None
            await self._in_progress.close()
            await (await opening).close()
