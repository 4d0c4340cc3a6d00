"""Databases for the runs: copies of one in which the messages are, and whose ids repeat."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from psycopg import Connection, conninfo

from consumers.testing.databases import Databases
from reservation.errors import StoreError
from reservation.postgres.connection import connect
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.store.client import MessageStore
from reservation.store.writing.write import Write

_QUERIES = load_queries("consumers.testing.crashing", "databases.sql")

# Where positions of messages begin in these databases, so that they are known among other numbers.
FIRST_POSITION = 1_900_000_000

# Seconds that a session may outlast its process.
PATIENCE = 10.0


class Copies:
    """The databases of one call of the crash kit.

    Attributes:
        admin: a connection to another database of their server.
    """

    def __init__(self, databases: Databases, admin: Connection[Any]) -> None:
        self.admin = admin
        self._databases = databases

    def make(self) -> "Copy":
        """Make another."""
        return Copy(self._databases, self.admin, self._databases.create())


class Copy:
    """A database for one run, dropped when its block ends.

    Attributes:
        address: where it is.
    """

    def __init__(self, databases: Databases, admin: Connection[Any], address: str) -> None:
        self.address = address
        self._databases = databases
        self._admin = admin
        self._name = conninfo.conninfo_to_dict(address)["dbname"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._databases.drop(self.address)

    def wait_until_left(self) -> None:
        """Wait until the server has noticed that the sessions of killed processes are over.

        A transaction that went on would keep its locks.
        """
        deadline = time.monotonic() + PATIENCE
        while self._admin.execute(_QUERIES["sessions"], [self._name]).fetchone() != (0,):
            if time.monotonic() > deadline:
                return  # what a handler left connected goes with the database
            time.sleep(0.002)  # nothing in the server tells

    def waits(self) -> bool:
        """Return whether a session waits for a lock that another holds."""
        return self._admin.execute(_QUERIES["waits"], [self._name]).fetchone() == (True,)


@contextmanager
def copies(
    server_url: str,
    prepare: Callable[[Connection[Any]], object] | None,
    writes: Sequence[Write],
) -> Iterator[Copies]:
    """Give the databases of one call, which are dropped with it."""

    def fill(connection: Connection[Any]) -> None:
        connection.execute(_QUERIES["number_from"], [FIRST_POSITION])
        connection.execute(_QUERIES["stable_messages"])
        connection.execute(_QUERIES["stable_trigger"])
        if prepare is not None:
            prepare(connection)
        for write in writes:
            MessageStore(connection).write_batch([write])
        connection.execute(_QUERIES["set_by_defaults"])

    with connect(server_url, autocommit=True) as admin:
        _refuse_messages(admin)
        with Databases(server_url, fill) as databases:
            yield Copies(databases, admin)


def _refuse_messages(connection: Connection[Any]) -> None:
    """Refuse a database that looks like one in use."""
    with translated():
        (exists,) = connection.execute(_QUERIES["has_store"]).fetchall()[0]
        if exists and connection.execute(_QUERIES["has_messages"]).fetchall()[0][0]:
            raise StoreError(
                f"The database {connection.info.dbname} has a store with messages, and the crash "
                f"kit makes databases and kills sessions on its server; name a database on a "
                f"server for tests"
            )
