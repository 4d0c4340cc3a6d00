"""Fixtures: a server for the run, and for each test a database of its own."""

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from psycopg import Connection, conninfo, sql

from reservation import MessageStore, install
from reservation.store.connection import connect
from tests.servers import server

_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the caller choose where PostgreSQL runs."""
    parser.addoption(
        "--database",
        choices=["embedded", "container"],
        default="embedded",
        help="run PostgreSQL embedded or in a container, unless RESERVATION_TEST_DATABASE_URL "
        "names one",
    )


@pytest.fixture(autouse=True)
def _no_database_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every test from a database that the caller's environment names."""
    for name in list(os.environ):
        if name.startswith("PG") or name == "RESERVATION_DATABASE_URL":
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def server_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the address of the server that the whole run uses."""
    with server(request.config.getoption("--database")) as address:
        yield address


@pytest.fixture(scope="session")
def admin(server_url: str) -> Iterator[Connection[Any]]:
    """Give a connection that makes and drops databases."""
    with connect(server_url, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def template(admin: Connection[Any], server_url: str) -> Iterator[str]:
    """Give the name of a database with the store installed, to be cloned."""
    name = f"reservation_template_{os.getpid()}"
    _create(admin, name)
    with connect(_address(server_url, name), autocommit=True) as connection:
        install(connection)
    yield name
    _drop(admin, name)


@pytest.fixture
def make_database(admin: Connection[Any], server_url: str) -> Iterator[Callable[..., str]]:
    """Give a function that makes a database, a copy of a template if named, for this test."""
    made = []

    def make(template: str | None = None) -> str:
        name = f"reservation_test_{os.getpid()}_{next(_numbers)}"
        _create(admin, name, template)
        made.append(name)
        return _address(server_url, name)

    yield make
    for name in made:
        _drop(admin, name)


@pytest.fixture
def empty_database_url(make_database: Callable[..., str]) -> str:
    """Give the address of a database with nothing in it."""
    return make_database()


@pytest.fixture
def database_url(make_database: Callable[..., str], template: str) -> str:
    """Give the address of a database of this test's own, with the store installed."""
    return make_database(template)


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection[Any]]:
    """Give a connection to the test's database, in autocommit."""
    with connect(database_url, autocommit=True) as opened:
        yield opened


@pytest.fixture
def store(connection: Connection[Any]) -> MessageStore:
    """Give a client of the test's store."""
    return MessageStore(connection)


def _address(server_url: str, name: str) -> str:
    return conninfo.make_conninfo(server_url, dbname=name)


def _create(admin: Connection[Any], name: str, template: str | None = None) -> None:
    admin.execute(
        sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template or "template0")
        )
    )


def _drop(admin: Connection[Any], name: str) -> None:
    admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
