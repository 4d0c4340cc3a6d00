"""The fixtures of the pytest plugin ``reservation``: a store of its own for each test.

pytest imports this module at every start, so it imports nothing but pytest; the rest is imported
when a fixture is used. That is why it is not in `consumers`, whose import takes much longer.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from consumers import Drained
    from consumers.testing import Databases
    from reservation import Component, MessageStore

_OPTION = "--reservation-database-url"
_VARIABLE = "RESERVATION_TEST_DATABASE_URL"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the caller name a server."""
    parser.getgroup("reservation").addoption(
        _OPTION,
        metavar="URL",
        help=f"run the tests that use reservation's fixtures on this PostgreSQL, as a role that "
        f"may create databases; or set {_VARIABLE}. Without it an embedded one is started.",
    )


@pytest.fixture(scope="session")
def reservation_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a PostgreSQL for tests: the one that is named, or an embedded one."""
    named = request.config.getoption(_OPTION) or os.environ.get(_VARIABLE)
    if named:
        yield named
        return
    from consumers.testing import embedded_server

    with ExitStack() as stack:
        yield _or_fail("", lambda: stack.enter_context(embedded_server()))


@pytest.fixture(scope="session")
def _reservation_databases(reservation_server: str) -> "Iterator[Databases]":
    from consumers.testing import Databases

    with Databases(reservation_server) as databases:
        yield databases


@pytest.fixture
def reservation_database_url(_reservation_databases: "Databases") -> Iterator[str]:
    """The address of a database of this test's own with the store installed; dropped afterwards."""
    address = _or_fail("There is no database for the test: ", _reservation_databases.create)
    yield address
    _reservation_databases.drop(address)


@pytest.fixture
def reservation_store(reservation_database_url: str) -> "Iterator[MessageStore]":
    """A `MessageStore` on the test's database, which commits each write."""
    from reservation import MessageStore
    from reservation.postgres.connection import connect

    with connect(reservation_database_url, autocommit=True) as connection:
        yield MessageStore(connection)


# Any: components have entities of their own.
@pytest.fixture
def drain(reservation_database_url: str) -> "Callable[[Component[Any]], Drained]":
    """A function that lets a component handle all that the test's database holds for it."""
    import consumers

    return partial(consumers.drain, database_url=reservation_database_url)


def _or_fail(what: str, make: Callable[[], str]) -> str:
    """Return what a function makes; if it cannot, fail the test with one line."""
    from reservation.errors import StoreError

    try:
        return make()
    except StoreError as error:
        reason = f"{what}{error}"
    pytest.fail(reason, pytrace=False)
