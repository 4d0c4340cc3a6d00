"""The pools of connections: one that only reads, and one that acts.

A database that goes away costs each request the time that it waits for a connection, and nothing
else: the pool connects again by itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import Connection, IsolationLevel
from psycopg_pool import ConnectionPool

from reservation.postgres.connection import check_alive, connection_settings, set_for_session
from reservation.postgres.error_translation import translated
from reservation.postgres.pooler import is_pooled

# Seconds that a request waits for a connection, that a statement of a page takes at most, and one
# that acts.
PATIENCE = 3.0
LONGEST_STATEMENT = 10
LONGEST_ACTION = 60

# Connections of one pool. A page holds one while it reads.
_MOST = 4

_LIMIT = "SELECT set_config('statement_timeout', %s, true)"
_SESSION_LIMIT = "SELECT set_config('statement_timeout', %s, false)"


class Database:
    """A pool of connections to one address."""

    def __init__(self, database_url: str, application_name: str = "reservation console") -> None:
        self._pool: ConnectionPool[Connection[Any]] = ConnectionPool(
            database_url,
            kwargs={"autocommit": True, **connection_settings(application_name)},
            min_size=1,
            max_size=_MOST,
            open=False,
            configure=_configure,
            check=check_alive,
            timeout=PATIENCE,
            reconnect_timeout=PATIENCE,  # a request tries again, so it never waits long
            name=application_name,
        )

    def open(self) -> None:
        """Start to connect."""
        self._pool.open()

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    @contextmanager
    def snapshot(self) -> Iterator[Connection[Any]]:
        """Give a connection in a transaction that only reads, all of it from one snapshot.

        Functions that begin a transaction of their own may be called within; theirs is then a part
        of this one.
        """
        with translated(), self._pool.connection() as connection:
            connection.read_only = True
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            try:
                with connection.transaction():
                    connection.execute(_LIMIT, [f"{LONGEST_STATEMENT}s"])
                    yield connection
            finally:
                _as_it_was(connection)

    @contextmanager
    def session(self) -> Iterator[Connection[Any]]:
        """Give a connection outside a transaction, for functions that begin their own and write."""
        with translated(), self._pool.connection() as connection:
            yield connection


def _configure(connection: Connection[Any]) -> None:
    if not is_pooled(connection):
        set_for_session(connection)
        connection.execute(_SESSION_LIMIT, [f"{LONGEST_ACTION}s"])


def _as_it_was(connection: Connection[Any]) -> None:
    """Let the next user of a connection write again, unless it is lost."""
    if not connection.closed and connection.info.transaction_status == (
        psycopg.pq.TransactionStatus.IDLE
    ):
        connection.read_only = None
        connection.isolation_level = None
