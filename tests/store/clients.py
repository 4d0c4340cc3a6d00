"""Both clients under one interface, so that one test holds for the sync and the async one."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import pytest
from psycopg import AsyncConnection, Connection
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from reservation import AsyncMessageStore, MessageStore
from reservation.postgres.connection import connection_settings


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test that is a coroutine function in an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Client:
    """The sync or the async client.

    Args:
        is_async: which.
    """

    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async

    async def open(self, address: str, **options: Any) -> Any:
        """Return a store with a pool, to be used as the async one is."""
        if self.is_async:
            return await AsyncMessageStore.open(address, **options)
        return _Awaited(MessageStore.open(address, **options))

    async def transacting(self, address: str) -> Any:
        """Return a store on a pool of the caller's, whose connections are not in autocommit."""
        options: dict[str, Any] = {"min_size": 1, "max_size": 1, "kwargs": connection_settings()}
        if self.is_async:
            pool = AsyncConnectionPool(address, open=False, **options)
            await pool.open()
            return AsyncMessageStore(pool)
        return _Awaited(MessageStore(ConnectionPool(address, open=True, **options)))

    async def connect(self, address: str, **options: Any) -> Any:
        """Return a connection, to be used as an `AsyncConnection` is."""
        settings = connection_settings() | options
        if self.is_async:
            return await AsyncConnection.connect(address, **settings)
        return _Awaited(Connection.connect(address, **settings))

    def on(self, connection: Any) -> Any:
        """Return a store on a connection that `connect` gave."""
        if self.is_async:
            return AsyncMessageStore(connection)
        return _Awaited(MessageStore(connection._inner))


CLIENTS = [pytest.param(Client(False), id="sync"), pytest.param(Client(True), id="async")]


class _Awaited:
    """A sync object, with the methods of an async one."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value
        return lambda *arguments, **named: _Outcome(value(*arguments, **named))

    async def __aenter__(self) -> "_Awaited":
        self._inner.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)


class _Outcome:
    """What a sync call returned, to be awaited, gone through, or entered."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __await__(self) -> Generator[None, None, Any]:
        return self._value
        yield  # a generator is what can be awaited

    async def __aiter__(self) -> AsyncIterator[Any]:
        for item in self._value:
            yield item

    async def __aenter__(self) -> Any:
        return self._value.__enter__()

    async def __aexit__(self, *error: Any) -> Any:
        return self._value.__exit__(*error)
