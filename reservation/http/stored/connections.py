"""The connections of one event loop: a pool for the store, and the session of the locks."""

import asyncio

from reservation.http.stored.in_progress import InProgress
from reservation.postgres import forks
from reservation.postgres.finishing import finished
from reservation.store.async_client import AsyncMessageStore


class Connections:
    """A middleware's open connections, made at their first use.

    A middleware is made before there is an event loop, and in tests there may be several, one after
    another. Connections of a loop that has ended are left to it.
    """

    def __init__(self, database_url: str, max_connections: int) -> None:
        self._address = database_url
        self._max_connections = max_connections
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Future[AsyncMessageStore] | None = None
        self._in_progress: InProgress | None = None
        forks.after_fork(self, Connections._let_go)

    async def open(self) -> tuple[AsyncMessageStore, InProgress]:
        """Return them, opened."""
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
            await finished(_close(opening))

    def _let_go(self) -> None:
        """Have others opened in a fork."""
        self._opening = self._in_progress = None


async def _close(opening: asyncio.Future[AsyncMessageStore]) -> None:
    await (await opening).close()
