"""The databases of the tests: one for each worker, emptied after each test, and others."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import Connection, conninfo, sql

from reservation.admin import install
from reservation.postgres.connection import connect

numbers = itertools.count(1)

# How many tests may use a database one after the other; what they leave in files adds up.
MOST_USES = 300

SESSIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'
"""

# What a new store has beside rows: objects, settings and rights. Statistics are no change.
LOOKS_LIKE = """
SELECT (SELECT hash_array_extended(array_agg((tableoid, oid, xmin::text)::text
                                             ORDER BY tableoid, oid), 0)
        FROM (SELECT tableoid, oid, xmin FROM pg_class WHERE oid >= 16384
              UNION ALL SELECT tableoid, oid, xmin FROM pg_proc WHERE oid >= 16384
              UNION ALL SELECT tableoid, oid, xmin FROM pg_type WHERE oid >= 16384
              UNION ALL SELECT tableoid, oid, xmin FROM pg_constraint WHERE oid >= 16384
              UNION ALL SELECT tableoid, oid, xmin FROM pg_trigger WHERE oid >= 16384
              UNION ALL SELECT tableoid, oid, xmin FROM pg_policy
              UNION ALL SELECT tableoid, indexrelid, xmin FROM pg_index WHERE indexrelid >= 16384
              UNION ALL SELECT tableoid, seqrelid, xmin FROM pg_sequence
              UNION ALL SELECT tableoid, oid, xmin FROM pg_namespace
              UNION ALL SELECT tableoid, oid, xmin FROM pg_default_acl
              UNION ALL SELECT tableoid, oid, xmin FROM pg_extension
              UNION ALL SELECT tableoid, oid, xmin FROM pg_database
                        WHERE datname = current_database()) AS objects),
       (SELECT hash_array_extended(array_agg((attrelid, attnum, xmin::text)::text
                                             ORDER BY attrelid, attnum), 0)
        FROM pg_attribute WHERE attrelid >= 16384),
       (SELECT count(*) FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
        WHERE d.datname = current_database()),
       (SELECT array_agg(v::text ORDER BY v) FROM reservation.versions v),
       (SELECT array_agg(i::text) FROM reservation.store_identity i),
       (SELECT count(*) FROM reservation.sender_categories)
"""


class WorkerDatabase:
    """The database that the tests of a worker use one after the other.

    A test finds it as a new store. Where one leaves more than rows, the next gets another one.
    One session stays connected from test to test, because the statements of a new one take ten
    times as long.
    """

    def __init__(self, admin: Connection[Any], server_url: str, template: str) -> None:
        self._admin = admin
        self._server_url = server_url
        self._template = template
        self._name = ""
        self._session: Connection[Any] | None = None
        self._uses = 0
        self._new: tuple[Any, ...] | None = None
        self._empty = ""

    def take(self) -> str:
        """Give its address, to a test that finds it as new."""
        if not self._name:
            self._name = f"reservation_worker_{os.getpid()}_{next(numbers)}"
            self._uses = 0
            create(self._admin, self._name, self._template)
            self._session = connect(self.url, application_name="tests", autocommit=True)
            self._empty = _emptying(self._session)
            self._new = _look(self._session)
        self._uses += 1
        return self.url

    @property
    def url(self) -> str:
        return address(self._server_url, self._name)

    def give_back(self) -> None:
        """Empty it, or drop it if the test changed more than rows."""
        if self._uses >= MOST_USES or not self._emptied():
            self.drop()

    def _emptied(self) -> bool:
        assert self._session is not None
        try:
            is_as_new = _is_alone(self._session) and self._new == _look(self._session)
            if is_as_new:
                self._session.execute(self._empty)
        except psycopg.Error:  # its schemas, or it, or this session, are gone
            return False
        return is_as_new

    def drop(self) -> None:
        """Remove it; the next test gets another one."""
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._name:
            drop(self._admin, self._name)
            self._name = ""


def _look(connection: Connection[Any]) -> tuple[Any, ...] | None:
    return connection.execute(LOOKS_LIKE).fetchone()


def _is_alone(connection: Connection[Any]) -> bool:
    """Whether this is the only session; one that was closed takes a moment to end."""
    deadline = time.monotonic() + 0.2
    while connection.execute(SESSIONS).fetchone() != (1,):
        if time.monotonic() > deadline:
            return False
    return True


def _emptying(connection: Connection[Any]) -> str:
    """Return what removes all rows of a new store's tables, and starts its sequences again."""
    tables = connection.execute(
        "SELECT format('DELETE FROM %I.%I;', schemaname, tablename) FROM pg_tables"
        " WHERE schemaname IN ('message_store', 'reservation')"
        " AND tablename NOT IN ('versions', 'store_identity') ORDER BY 1"
    ).fetchall()
    sequences = connection.execute(
        "SELECT format('SELECT setval(%L, %s, false);',"
        " format('%I.%I', schemaname, sequencename), start_value) FROM pg_sequences ORDER BY 1"
    ).fetchall()
    # Report the statistics of these statements now, not seconds later, during the next test.
    can_flush = connection.info.server_version >= 150_000
    flush = "SELECT pg_stat_force_next_flush();" if can_flush else ""
    return "".join(text for (text,) in tables + sequences) + flush


def address(server_url: str, name: str) -> str:
    """Return the address of a database on a server."""
    return conninfo.make_conninfo(server_url, dbname=name)


@contextmanager
def new_template(
    admin: Connection[Any],
    server_url: str,
    prefix: str,
    prepare: Callable[[Connection[Any]], None] = lambda _: None,
) -> Iterator[str]:
    """Give the name of a database with the store installed, to be copied."""
    name = f"{prefix}_{os.getpid()}"
    create(admin, name)
    with connect(address(server_url, name), autocommit=True) as connection:
        prepare(connection)
        install(connection)
    yield name
    drop(admin, name)


def create(admin: Connection[Any], name: str, template: str | None = None) -> None:
    """Make a database, as a copy of a template if one is named."""
    admin.execute(
        sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template or "template0")
        )
    )


def drop(admin: Connection[Any], name: str) -> None:
    """Remove a database, whoever is connected to it."""
    admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
