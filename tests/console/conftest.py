"""Fixtures of the tests of the console: a filled store, the application, a process, a browser.

A page's tests mostly need ``client``, which asks the application within the process, or ``page``,
a page of a real browser that is signed in at a console that runs as a process.
"""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from psycopg import Connection, conninfo, sql
from starlette.testclient import TestClient

from cli.console.application import LONGEST_FORM, Access, application
from cli.console.console import Console
from cli.console.reading.database import Database
from cli.console.security import ProxySignIn, SecurityHeaders, TokenSignIn
from reservation import Component
from reservation.postgres.connection import connect
from tests.console import browsing
from tests.console.filling import fill
from tests.console.trade import orders, payments
from tests.support.started import PATIENCE, command_line

TOKEN = "a-token-of-the-tests-that-nobody-guesses"
PROXY = "10.0.0.5"
TOO_LONG = "x" * LONGEST_FORM

# Who signs in: with a token, with it behind a proxy, and whom a proxy names.
BY_TOKEN = Access(TokenSignIn(TOKEN), ("testserver",))
BEHIND_PROXY = Access(TokenSignIn(TOKEN), ("testserver",), [PROXY])
BY_PROXY = Access(ProxySignIn("X-Forwarded-User"), ("testserver",), [PROXY])
APPS = ("trade:orders", "trade:payments")
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
    access: Access = BY_TOKEN,
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


class Serving:
    """A ``reservation console`` as a process."""

    def __init__(self, database_url: str, *arguments: str, apps: Sequence[str] = APPS) -> None:
        self.process = subprocess.Popen(
            command_line("console", *apps, "--port", "0", *arguments),
            env={**os.environ, "RESERVATION_DATABASE_URL": database_url},
            cwd=FOLDER,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("The console is at "):
                break
        assert "The console is at" in "".join(self.lines), self.lines
        self.sign_in_url = self.lines[-1].removeprefix("The console is at ").strip()
        self.url = re.sub(r"(:\d+)/.*", r"\1", self.sign_in_url)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to stop and return the exit status."""
        self.process.send_signal(number)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            if self.process.stderr:
                self.process.stderr.close()


@pytest.fixture(scope="session")
def serving(seen_url: str) -> Iterator[Serving]:
    """Give a console that only reads, as a process, for tests that only look."""
    started = Serving(seen_url)
    yield started
    started.stop()


@pytest.fixture
def acting(filled_url: str) -> Iterator[Serving]:
    """Give a console that acts, as a process, on a store of the test's own."""
    started = Serving(filled_url, "--operator-database-url", filled_url)
    yield started
    started.stop()


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

    def open_(at: Serving, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": browsing.DESKTOP, **options})
        contexts.append(context)
        page = context.new_page()
        page.goto(at.sign_in_url)
        return page

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture
def page(open_page: Callable[..., Page], serving: Serving) -> Page:
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
