"""The connection on which one consumer's limits are read and changed.

It is another than that of the batches, so that no lock is held until a batch is committed, and
nothing is given back if it is rolled back. A fault of it is one of the environment.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import Connection

from consumers.runtime.session import impatient
from reservation.postgres.connection import connect
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.limits")


class LimitsConnection:
    """A connection in autocommit, opened when it is needed first, and again after a fault."""

    def __init__(self, address: str, application_name: str) -> None:
        self._address = address
        self._application_name = application_name
        self._connection: Connection[Any] | None = None

    # Any: rows and parameters of different types.
    def query(self, name: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a query, committed by itself, and return its rows."""
        try:
            with translated():
                if self._connection is None:
                    self._connection = self._open()
                return self._connection.execute(_QUERIES[name], values).fetchall()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # a handler may have closed its descriptor
                connection.close()

    def _open(self) -> Connection[Any]:
        connection = connect(
            impatient(self._address), application_name=self._application_name, autocommit=True
        )
        try:
            connection.execute(_QUERIES["settings"])
        except psycopg.Error:
            connection.close()
            raise
        return connection
