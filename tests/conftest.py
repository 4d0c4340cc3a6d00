"""Fixtures: a server for the run, a database for each worker, and others of a test's own."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from psycopg import Connection, connect

from reservation import MessageStore
from spark_jobs.common.errors import SparkUnavailableError
from spark_jobs.session.java import require_java
from tests.support import chance
from tests.support.databases import WorkerDatabase, address, create, drop, new_template, numbers
from tests.support.message_db import imitate
from tests.support.servers import server

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
    """Let started processes receive SIGINT, which a shell's background job ignores, and find Java.

    They store none of Java's classes in the background, which would take time from other tests.
    Spark's own programs look for Java only in JAVA_HOME and on the PATH. Where there is none at
    all, the tests that need it fail, and say so.
    """
    os.environ["RESERVATION_SPARK_PREPARE"] = "off"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(SparkUnavailableError):
        require_java()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seeds with which the run can be repeated, even if it is quiet."""
    terminalreporter.write_line(f"Seeds are counted from RESERVATION_TEST_SEED={chance.FIRST}.")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without Python's garbage collector, which would take half of that time.

    It would visit all imported objects again and again. They stay until the end, so it does not
    visit them while the tests run either.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest tests first.

    With several workers, each takes an equal share of the list and then what is left of others'.
    The tests that share a Spark session so run on one worker, which alone has to start it, and no
    worker is left with a long test at the end.
    """
    items.sort(key=_weight)


def _weight(item: pytest.Item) -> int:
    if "spark" in getattr(item, "fixturenames", ()):
        return 0
    return 1 if {"processes", "soak"} & {*item.path.parts} else 2


@pytest.fixture(autouse=True)
def _no_database_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every test away from a database that the caller's environment names."""
    for name in list(os.environ):
        if name.startswith("PG") or name == "RESERVATION_DATABASE_URL":
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _logs_not_configured() -> Iterator[None]:
    """Leave structlog to the next test as a program finds it."""
    yield
    structlog.reset_defaults()


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
    with new_template(admin, server_url, "reservation_template") as name:
        yield name


@pytest.fixture(scope="session")
def message_db_template(admin: Connection[Any], server_url: str) -> Iterator[str]:
    """Give the name of a template whose schema message_store is not ours."""
    with new_template(admin, server_url, "message_db_template", imitate) as name:
        yield name


@pytest.fixture
def make_database(admin: Connection[Any], server_url: str) -> Iterator[Callable[..., str]]:
    """Give a function that makes a database, a copy of a template if named, for this test."""
    made = []

    def make(template: str | None = None) -> str:
        name = f"reservation_test_{os.getpid()}_{next(numbers)}"
        create(admin, name, template)
        made.append(name)
        return address(server_url, name)

    yield make
    for name in made:
        drop(admin, name)


@pytest.fixture
def empty_database_url(make_database: Callable[..., str]) -> str:
    """Give the address of a database with nothing in it."""
    return make_database()


@pytest.fixture(scope="session")
def worker_database(
    admin: Connection[Any], server_url: str, template: str
) -> Iterator[WorkerDatabase]:
    """Give the database that the tests of this worker use one after the other."""
    database = WorkerDatabase(admin, server_url, template)
    yield database
    database.drop()


@pytest.fixture
def database_url(worker_database: WorkerDatabase) -> Iterator[str]:
    """Give the address of a new store, in the worker's database."""
    yield worker_database.take()
    worker_database.give_back()


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
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[Connection[Any]]:
    """Give the connections that waited for the server, once for each time."""
    waited: list[Connection[Any]] = []
    wait: Callable[..., Any] = Connection.wait

    def counted(connection: Connection[Any], *arguments: Any, **options: Any) -> Any:
        waited.append(connection)
        return wait(connection, *arguments, **options)

    monkeypatch.setattr(Connection, "wait", counted)
    return waited
