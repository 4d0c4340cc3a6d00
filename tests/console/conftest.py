"""Fixtures of the tests of the console: a filled store, the application, a browser.

A page's tests mostly need ``client``, which asks the application within the process, or ``page``,
a page of a real browser that is signed in at a console that a thread serves.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page
from psycopg import Connection, conninfo, sql
from starlette.testclient import TestClient

from cli.console.application import LONGEST_FORM, AccessRules, application
from cli.console.console import Console
from cli.console.reading.database import Database
from cli.console.security import ProxySignIn, SecurityHeaders, TokenSignIn
from reservation import Component
from reservation.postgres.connection import connect
from tests.apps import http_app
from tests.console import browsing
from tests.console.filling import fill
from tests.console.trade import orders, payments

TOKEN = "a-token-of-the-tests-that-nobody-guesses"
PROXY = "10.0.0.5"
TOO_LONG = "x" * LONGEST_FORM

# Who signs in: with a token, with it behind a proxy, and whom a proxy names.
BY_TOKEN = AccessRules(TokenSignIn(TOKEN), ("testserver",))
BEHIND_PROXY = AccessRules(TokenSignIn(TOKEN), ("testserver",), [PROXY])
BY_PROXY = AccessRules(ProxySignIn("X-Forwarded-User"), ("testserver",), [PROXY])
FOLDER = Path(__file__).parent


@pytest.fixture(scope="session")
def filled_template(admin: Connection[Any], server_url: str, template: str) -> Iterator[str]:
    """Give the name of a database in which everything has happened, to be cloned."""
    name = f"console_template_{os.getpid()}"
    _create(admin, name, template)
    url = conninfo.make_conninfo(server_url, dbname=name)
    with connect(url, autocommit=True) as connection:
        fill(connection, url)
    yield name
    _drop(admin, name)


@pytest.fixture(scope="session")
def seen_url(admin: Connection[Any], server_url: str, filled_template: str) -> Iterator[str]:
    """Give the address of a filled store for tests that only look at it."""
    name = f"console_seen_{os.getpid()}"
    _create(admin, name, filled_template)
    yield conninfo.make_conninfo(server_url, dbname=name)
    _drop(admin, name)


@pytest.fixture
def filled_url(make_database: Callable[..., str], filled_template: str) -> str:
    """Give the address of a filled store of this test's own, which it may change."""
    return make_database(filled_template)


def built(
    database_url: str,
    *,
    operator: bool = False,
    access: AccessRules = BY_TOKEN,
    components: Sequence[Component[Any]] = (orders, payments),
) -> SecurityHeaders:
    """Return the application on a store, with sign-in by `TOKEN` unless another is named."""
    console = Console(
        Database(database_url),
        Database(database_url) if operator else None,
        {component.name: component for component in components},
        {"order": "trade:orders", "payment": "trade:payments"},
        can_sign_out=isinstance(access.sign_in, TokenSignIn),
    )
    return application(console, access)


def signed_in(client: TestClient, name: str = "anna") -> TestClient:
    """Sign a client in."""
    client.headers["origin"] = "http://testserver"  # as browsers send it with a form
    answer = client.post("/sign-in", data={"token": TOKEN, "name": name}, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    return client


@pytest.fixture
def client(seen_url: str) -> Iterator[TestClient]:
    """Give a client that is signed in at a console that only reads."""
    with TestClient(built(seen_url)) as client:
        yield signed_in(client)


@pytest.fixture
def operator_client(filled_url: str) -> Iterator[TestClient]:
    """Give a client that is signed in at a console that acts, on a store of the test's own."""
    with TestClient(built(filled_url, operator=True)) as client:
        yield signed_in(client)


class Served(NamedTuple):
    """A console that a thread of this process serves."""

    url: str

    @property
    def sign_in_url(self) -> str:
        return f"{self.url}/sign-in?token={TOKEN}"


@contextmanager
def served(database_url: str, *, operator: bool = False) -> Iterator[Served]:
    """Serve a console to browsers."""
    access = AccessRules(TokenSignIn(TOKEN, in_address=True), ("127.0.0.1",))
    with http_app.serving(built(database_url, operator=operator, access=access)) as url:
        yield Served(url)


@pytest.fixture(scope="session")
def serving(seen_url: str) -> Iterator[Served]:
    """Give a console that only reads, for tests that only look."""
    with served(seen_url) as console:
        yield console


@pytest.fixture
def acting(filled_url: str) -> Iterator[Served]:
    """Give a console that acts, on a store of the test's own."""
    with served(filled_url, operator=True) as console:
        yield console


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Give a browser, no longer than it is needed: it has an event loop in the main thread."""
    with browsing.started() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Give a function that opens a page signed in at a console, in a window of its own.

    It takes the console, and what Playwright's `new_context` takes, such as `color_scheme` and
    `viewport`.
    """
    contexts = []

    def open_(at: Served, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": browsing.DESKTOP, **options})
        contexts.append(context)
        page = context.new_page()
        page.goto(at.sign_in_url)
        return page

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture
def page(open_page: Callable[..., Page], serving: Served) -> Page:
    """Give a page that is signed in at the console that only reads."""
    return open_page(serving)


def _create(admin: Connection[Any], name: str, template: str) -> None:
    admin.execute(
        sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template)
        )
    )


def _drop(admin: Connection[Any], name: str) -> None:
    admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
