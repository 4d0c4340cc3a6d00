"""Databases for tests: each is a copy of a template that has the store installed."""

import os
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from psycopg import Connection, conninfo, sql

from reservation.postgres.connection import connect
from reservation.postgres.error_translation import translated
from reservation.store.schema.install import install


class Databases:
    """Makes databases on a server, and drops them.

    Each has a name of its own, so several processes may share the server.
    """

    def __init__(
        self, server_url: str, prepare: Callable[[Connection[Any]], object] | None = None
    ) -> None:
        """Prepare; the template is made with the first database.

        Args:
            server_url: the address of any database of the server, as a role that may create
                databases.
            prepare: adds to the template what every database is to have; it gets a connection in
                autocommit.
        """
        self._prepare = prepare
        self._server_url = server_url
        self._prefix = f"reservation_test_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self._admin: Connection[Any] | None = None
        self._template: str | None = None
        self._made: set[str] = set()
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def create(self) -> str:
        """Make a database with the store installed, and return its address.

        Raises:
            StoreError: the server is away, or the role may not create databases.
        """
        if self._template is None:
            name = self._create("template0")
            with connect(self._address(name), autocommit=True) as connection:
                install(connection)
                if self._prepare is not None:
                    self._prepare(connection)
            self._template = name
        return self._address(self._create(self._template))

    def drop(self, database_url: str) -> None:
        """Drop a database that `create` made, and end what is still connected to it.

        Raises:
            StoreError: the server is away.
        """
        self._drop(str(conninfo.conninfo_to_dict(database_url)["dbname"]))

    def close(self) -> None:
        """Drop all that is left, and the template.

        Raises:
            StoreError: the server is away.
        """
        if self._admin is not None:
            for name in sorted(self._made):
                self._drop(name)
            self._admin.close()
        self._admin = self._template = None

    @property
    def _connection(self) -> Connection[Any]:
        if self._admin is None:
            self._admin = connect(self._server_url, autocommit=True)
        return self._admin

    def _address(self, name: str) -> str:
        return conninfo.make_conninfo(self._server_url, dbname=name)

    def _create(self, template: str) -> str:
        self._count += 1
        name = f"{self._prefix}_{self._count}"
        names = sql.Identifier(name), sql.Identifier(template)
        with translated():
            self._connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))
        self._made.add(name)
        return name

    def _drop(self, name: str) -> None:
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        with translated():
            self._connection.execute(drop)
        self._made.discard(name)
