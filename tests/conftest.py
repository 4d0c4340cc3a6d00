"""Fixtures: a server for the run, and for each test a database of its own."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from psycopg import Connection, conninfo, sql

from consumers.testing.embedded_server import server_folder
from reservation import MessageStore, install
from reservation.postgres.connection import connect
from tests import chance
from tests.message_db import imitate
from tests.servers import server

_numbers = itertools.count(1)

# The same examples at every run; `--hypothesis-profile=search` looks for new ones. The examples of
# one test share its database and take names of their own.
settings.register_profile(
    "search",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("same", settings.get_profile("search"), derandomize=True, database=None)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the caller choose where PostgreSQL runs."""
    parser.addoption(
        "--database",
        choices=["embedded", "container"],
        default="embedded",
        help="run PostgreSQL embedded or in a container, unless RESERVATION_TEST_DATABASE_URL "
        "names one",
    )


def pytest_configure() -> None:
    """Let started processes receive SIGINT, which a shell's background job ignores."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seeds with which the run can be repeated, even if it is quiet."""
    terminalreporter.write_line(f"Seeds are counted from RESERVATION_TEST_SEED={chance.FIRST}.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest tests first, and leave out those that must be asked for by name.

    With several workers, each takes an equal share of the list and then what is left of others'.
    The tests that share a Spark session so run on one worker, which alone has to start it, and no
    worker is left with a long test at the end.
    """
    items.sort(key=_weight)
    if "exhaustive" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    if left_out:
        items[:] = [item for item in items if item not in set(left_out)]
        config.hook.pytest_deselected(items=left_out)


def _weight(item: pytest.Item) -> int:
    if "spark" in getattr(item, "fixturenames", ()):
        return 0
    for weight, mark in enumerate(("spark", "faults", "slow"), start=1):
        if item.get_closest_marker(mark):
            return weight
    return 4


@pytest.fixture(autouse=True)
def _no_database_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every test away from a database that the caller's environment names."""
    for name in list(os.environ):
        if name.startswith("PG") or name == "RESERVATION_DATABASE_URL":
            monkeypatch.delenv(name)


@pytest.fixture(name="server_folder")
def _server_folder() -> Iterator[Path]:
    """Give a folder for the data of servers of a test's own."""
    with server_folder() as folder:
        yield folder


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
    with _template(admin, server_url, "reservation_template") as name:
        yield name


@pytest.fixture(scope="session")
def message_db_template(admin: Connection[Any], server_url: str) -> Iterator[str]:
    """Give the name of a template whose schema message_store is not ours."""
    with _template(admin, server_url, "message_db_template", imitate) as name:
        yield name


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


@pytest.fixture
def peer(database_url: str) -> Iterator[Any]:
    """Give message-db-py, a client that is not ours, on the test's database."""
    from message_db.client import MessageDB

    address = conninfo.make_conninfo(database_url, options="-csearch_path=message_store")
    client = MessageDB.from_url(address, max_connections=2)
    yield client
    client.connection_pool.closeall()


def _address(server_url: str, name: str) -> str:
    return conninfo.make_conninfo(server_url, dbname=name)


@contextmanager
def _template(
    admin: Connection[Any],
    server_url: str,
    prefix: str,
    prepare: Callable[[Connection[Any]], None] = lambda _: None,
) -> Iterator[str]:
    name = f"{prefix}_{os.getpid()}"
    _create(admin, name)
    with connect(_address(server_url, name), autocommit=True) as connection:
        prepare(connection)
        install(connection)
    yield name
    _drop(admin, name)


def _create(admin: Connection[Any], name: str, template: str | None = None) -> None:
    admin.execute(
        sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template or "template0")
        )
    )


def _drop(admin: Connection[Any], name: str) -> None:
    admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
