"""The one connection on which all tasks of a store wait for outcomes.

There may be thousands of tasks, so they share it: while any of them waits for a category, the
connection listens for it, and every notice wakes those that wait for that category.

psycopg reads what the server sends only while a statement runs or `notifies` does, and that one
keeps others from running statements. So the event loop watches the socket itself, but for the time
of a statement.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import psycopg
from psycopg import AsyncConnection, Notify, sql

from reservation.errors import ReservationError
from reservation.postgres.connection import connect_async
from reservation.postgres.error_translation import translated
from reservation.postgres.finishing import finished
from reservation.postgres.pooler import is_pooled_async
from reservation.postgres.queries import load_queries
from reservation.store.answers.listeners import APPLICATION_NAME, address_of
from reservation.store.listening import RETRY

_QUERIES = load_queries("reservation.store", "notifications.sql")


# Gives a connection.
Connected = Callable[[], AbstractAsyncContextManager[AsyncConnection[Any]]]


class AsyncListener:
    """Wakes tasks that wait for messages of a category."""

    def __init__(self) -> None:
        self._connection: AsyncConnection[Any] | None = None
        self._lock = asyncio.Lock()
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._expected: dict[str, str] = {}  # categories by their channels
        self._leaving: set[asyncio.Task[None]] = set()
        self._try_at = 0.0

    async def enter(self, category: str, connected: Connected) -> asyncio.Event | None:
        """Begin to wait for a category; the event is set at each notice.

        What was written before is not noticed, so look once more before waiting.
        """
        woken = asyncio.Event()
        self._waiting[category].add(woken)
        try:
            if await finished(self._begin(category, connected)):
                return woken
        except BaseException:
            self.leave(category, woken)
            raise
        self.leave(category, woken)
        return None

    def leave(self, category: str, woken: asyncio.Event) -> None:
        """Wait no longer."""
        self._waiting[category].discard(woken)
        if not self._waiting[category]:
            task = asyncio.ensure_future(self._forget(category))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Close the connection; who still waits polls from now on."""
        await finished(self._close())

    async def _close(self) -> None:
        if self._leaving:
            await asyncio.gather(*self._leaving, return_exceptions=True)
        async with self._lock:
            await self._lose()

    async def _begin(self, category: str, connected: Connected) -> bool:
        async with connected() as connection, self._lock:
            # Who began it may have been cancelled.
            return bool(self._waiting.get(category)) and await self._expects(category, connection)

    async def _expects(self, category: str, connection: AsyncConnection[Any]) -> bool:
        """Let writers of a category give notice; return False if that is not possible now."""
        if category in self._expected.values():
            return True
        if self._connection is None and time.monotonic() < self._try_at:
            return False
        try:
            with translated():
                if self._connection is None and not await self._connect(connection):
                    return False
                ((channel,),) = await self._run(_QUERIES["channel"], category)
                await self._run(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                ((expecting,),) = await self._run(_QUERIES["expect"], category)
        except ReservationError:
            await self._lose()
            return False
        if expecting:  # else a writer holds that up, and there is another attempt
            self._expected[channel] = category
        return bool(expecting)

    async def _connect(self, connection: AsyncConnection[Any]) -> bool:
        self._try_at = time.monotonic() + RETRY
        if await is_pooled_async(connection):
            return False
        listening = await connect_async(
            address_of(connection), application_name=APPLICATION_NAME, autocommit=True
        )
        listening.add_notify_handler(self._wake)
        self._connection = listening
        for setting in ("idle_session_timeout", "statement_timeout"):
            await self._run(sql.SQL("SET {} = 0").format(sql.Identifier(setting)))
        return True

    async def _forget(self, category: str) -> None:
        """Let writers of a category give no notice, unless somebody waits for it again."""
        async with self._lock:
            channel = next((c for c, name in self._expected.items() if name == category), None)
            if self._waiting[category]:
                return
            del self._waiting[category]
            if channel is None or self._connection is None:
                return
            del self._expected[channel]
            try:
                with translated():
                    await self._run(_QUERIES["leave"], category)
                    await self._run(sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)))
            except ReservationError:
                await self._lose()

    # Any: a statement is a text of ours, or composed.
    async def _run(self, statement: Any, *parameters: object) -> list[tuple[Any, ...]]:
        """Run a statement on the connection, whose socket is not watched meanwhile."""
        connection = self._connection
        assert connection is not None  # noqa: S101  the callers have looked
        loop, number = asyncio.get_running_loop(), connection.fileno()
        loop.remove_reader(number)
        cursor = await connection.execute(statement, parameters or None)
        rows = await cursor.fetchall() if cursor.description else []
        loop.add_reader(number, self._readable)
        self._readable()  # what came with the answer has been taken from the socket
        return rows

    def _readable(self) -> None:
        """Take what has arrived, and wake those that it is for."""
        connection = self._connection
        if connection is None:
            return
        try:
            for _ in range(2):  # the last words of a server come before the end
                connection.pgconn.consume_input()
            while notify := connection.pgconn.notifies():
                self._wake(Notify(notify.relname.decode(), "", notify.be_pid))
        except psycopg.Error:
            self._stop_watching()
            self._wake_all()

    def _wake(self, notify: Notify) -> None:
        for woken in self._waiting.get(self._expected.get(notify.channel, ""), ()):
            woken.set()

    def _wake_all(self) -> None:
        """Let everybody look again, because no notice will come any more."""
        self._expected.clear()
        for waiting in self._waiting.values():
            for woken in waiting:
                woken.set()

    def _stop_watching(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with contextlib.suppress(psycopg.Error):  # it may have no socket any more
            asyncio.get_running_loop().remove_reader(connection.pgconn.socket)
        connection.pgconn.finish()

    async def _lose(self) -> None:
        """Give the connection up, and let everybody look again."""
        self._stop_watching()
        self._wake_all()
