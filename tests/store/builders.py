"""What several of these files build: roles, and a store with notices as a test wants them."""

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from psycopg import Connection, conninfo, errors, sql

from tests.apps.bank import address
from tests.support.commands import invoke_cli

_numbers = itertools.count(1)


def store_command(connection: Connection[Any], *arguments: str) -> Any:
    """Run a command about the store of a connection; return how it ended."""
    env = {"RESERVATION_DATABASE_URL": address(connection), "COLUMNS": "300"}
    return invoke_cli("store", *arguments, env=env)


def switch_notices(connection: Connection[Any], switch: str) -> None:
    """Let the store's writers notify waiting readers, or not."""
    done = store_command(connection, "notices", switch)
    assert done.returncode == 0, done.stderr


def grant(
    connection: Connection[Any],
    kind: str,
    role: str,
    categories: Sequence[str] = (),
    *options: str,
) -> dict[str, Any]:
    """Give a role the rights of a kind; return what the command says of it."""
    done = _granting(connection, kind, role, categories, "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusal(
    connection: Connection[Any], kind: str, role: str, categories: Sequence[str] = ()
) -> str:
    """Return why a role is not given the rights of a kind."""
    done = _granting(connection, kind, role, categories)
    assert done.returncode != 0, done.stdout
    return done.stderr


def _granting(
    connection: Connection[Any], kind: str, role: str, categories: Sequence[str], *options: str
) -> Any:
    named = [word for category in categories for word in ("--category", category)]
    return store_command(connection, "grants", *named, *options, "--", kind, role)


@pytest.fixture
def new_role(connection: Connection[Any]) -> Iterator[Callable[..., str]]:
    """Give a function that names a role for this test, and creates it on request."""
    names = []

    def new(suffix: str = "", *, create: bool = True) -> str:
        name = f"test_{os.getpid()}_{next(_numbers)}{suffix}"
        if create:
            run(connection, "CREATE ROLE {}", name)
        names.append(name)
        return name

    yield new
    connection.execute("RESET SESSION AUTHORIZATION")
    for name in names:
        if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [name]).fetchone():
            run(connection, "DROP OWNED BY {}", name)
            run(connection, "DROP ROLE {}", name)


@pytest.fixture
def granted(connection: Connection[Any], new_role: Callable[..., str]) -> Callable[..., str]:
    """Give a function that makes a role of a kind for this test."""

    def make(kind: str, *categories: str, suffix: str = "") -> str:
        role = new_role(suffix)
        grant(connection, kind, role, categories)
        return role

    return make


def check_denied(connection: Connection[Any], *statements: str) -> None:
    """Check that the role of a connection lacks the right to each of these statements."""
    for statement in statements:
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(statement)


def run(connection: Connection[Any], statement: str, *names: str) -> None:
    """Execute a statement with these identifiers in it."""
    connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def as_login(connection: Connection[Any], database_url: str, role: str) -> str:
    """Let a role log in, and return the database's address for it."""
    run(connection, "ALTER ROLE {} LOGIN PASSWORD 'secret'", role)
    return conninfo.make_conninfo(database_url, user=role, password="secret")


class WrittenDue(NamedTuple):
    """What one call has written of scheduled messages, and when to call next, in seconds."""

    written: int
    refused: int
    next_in: float | None


def write_due(connection: Connection[Any], most: int = 1000) -> WrittenDue:
    """Write scheduled messages that are due, as a consumer does between two batches."""
    query = "SELECT written, refused, next_in FROM reservation.write_scheduled(%s)"
    return WrittenDue(*connection.execute(query, [most]).fetchone())
