"""Connections in a process that was forked: they belong to the process that opened them.

A fork inherits the sockets. If it used one, two processes would write to one session, and each
would take answers that are meant for the other. So in the fork

- the descriptor of every connection that this package opened stands for ``/dev/null``. Nothing can
  be sent, not even by a clean-up, and the server notices the end of the first process although the
  fork goes on. The number is not closed, because the next file that is opened would get it.
- whatever uses such a connection raises an error, before it waits for a lock that a thread of the
  first process may have held.
- what holds connections lets go of them, and opens others or refuses.

Nothing that belongs to libpq or to a pool is touched: a thread of the first process may have been
changing it, and that thread does not exist in the fork.
"""

import contextlib
import os
import stat
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg_pool import ConnectionPool

from reservation.errors import StoreError

# What to do instead of using a store that was given a connection or a pool.
STORE = "make the store after the fork, or with open(), whose pool every process has for itself"

# Any: connections differ in what their rows are.
_Any = Connection[Any] | AsyncConnection[Any]

_opened: WeakSet[_Any] = WeakSet()
# What lets go of connections, by who holds them.
_holders: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()
_process = os.getpid()
_looking = threading.Lock()
# Pools of the processes before; without a reference they would be taken apart.
_inherited: list[object] = []


def opened(connection: _Any) -> None:
    """Note that this process opened a connection."""
    look()
    _opened.add(connection)


# Any: whatever it is.
def after_fork(holder: Any, let_go: Callable[[Any], object]) -> None:
    """Call a function in each fork, with what holds connections or else is not to be shared."""
    look()
    _holders[holder] = let_go


def leave(pool: object) -> None:
    """Leave a pool to the process that opened it."""
    _inherited.append(pool)


def look() -> None:
    """Notice a fork that Python does not know of, such as those of uWSGI."""
    if os.getpid() != _process:
        with _looking:
            if os.getpid() != _process:
                _separate()


def inherited(what: str, way_out: str) -> StoreError:
    """Return the error for what belongs to another process."""
    return StoreError(
        f"{what} was opened by another process, of which this one ({os.getpid()}) is a fork, and "
        f"two processes cannot share a connection; {way_out}"
    )


class Pool(ConnectionPool[Connection[Any]]):
    """A pool whose end in a fork takes nothing apart, and so waits for no lock."""

    # Any: what psycopg makes a pool of.
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._process = os.getpid()
        super().__init__(*arguments, **options)

    def __del__(self, _getpid: Any = os.getpid) -> None:
        if _getpid() == self._process:
            super().__del__()


class _Refusing:
    """Refuses the lock of a connection, without which nothing is done with it."""

    def __enter__(self) -> None:
        raise inherited("The connection", "open another one after the fork")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing was taken."""

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing was taken."""


def _separate() -> None:
    """Separate this process from the one that it is a fork of."""
    global _process
    connections = list(_opened)
    _opened.clear()
    for connection in connections:
        is_async = isinstance(connection, AsyncConnection)
        vars(connection).update(
            lock=_Refusing(), close=_stay_open_async if is_async else _stay_open
        )
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for connection in connections:
            _take_socket(connection, null)
        os.close(null)
    try:
        for holder, let_go in list(_holders.items()):
            let_go(holder)
    finally:
        _process = os.getpid()


def _take_socket(connection: _Any, null: int) -> None:
    with contextlib.suppress(OSError, psycopg.Error):
        number = connection.pgconn.socket
        if stat.S_ISSOCK(os.fstat(number).st_mode):  # its own may have been closed
            os.dup2(null, number, inheritable=False)


def _stay_open() -> None:
    """Close nothing: libpq would take its memory apart."""


async def _stay_open_async() -> None:
    """Close nothing: libpq would take its memory apart."""


os.register_at_fork(after_in_child=_separate)
