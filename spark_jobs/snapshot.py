"""One snapshot of the store that every reader of a job sees.

The driver opens a transaction and exports its snapshot; each reader takes it over, so partitions
and categories that are read at different moments fit together to the row.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection, IsolationLevel

from reservation.queries import load_queries
from reservation.store.connection import connect
from reservation.store.errors import translated
from reservation.store.install import check_installed

_QUERIES = load_queries("spark_jobs")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A moment of the store.

    Attributes:
        id: the name under which other transactions can take the snapshot over.
        time: when it was taken, in UTC.
    """

    id: str
    time: datetime
    _connection: Connection[Any]

    def position(self, consumer: str, category: str) -> int:
        """Return how far a consumer had read its category, 0 if it has never run."""
        with translated():
            rows = self._connection.execute(_QUERIES["position"], [consumer, category]).fetchall()
        return int(rows[0][0]) if rows else 0

    def letters(self, consumer: str, category: str) -> list[int]:
        """Return the global positions of the messages that a consumer did not deal with."""
        with translated():
            rows = self._connection.execute(_QUERIES["letters"], [consumer, category]).fetchall()
        return [int(row[0]) for row in rows]


@contextlib.contextmanager
def exported_snapshot(database_url: str) -> Iterator[Snapshot]:
    """Take a snapshot of the store and keep it alive for others to read.

    Raises:
        DatabaseUnavailableError: the database can not be reached.
        SchemaError: it holds no message store, or one of another version.
    """
    with connect(database_url, application_name="reservation snapshot") as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        check_installed(connection)
        # It stays open, and idle, for as long as the job reads.
        connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        with translated():
            snapshot, time = connection.execute(_QUERIES["export_snapshot"]).fetchall()[0]
        yield Snapshot(snapshot, time, connection)
