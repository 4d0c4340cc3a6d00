"""Connections to the database that an address names.

The address is a libpq URL or connection string; libpq adds what is missing from its environment
variables, service file and password file.
"""

import re
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection, conninfo

from reservation.errors import DatabaseUnavailableError, StoreError
from reservation.postgres import forks
from reservation.postgres.embedded import names_embedded
from reservation.postgres.pooler import is_pooled, is_pooled_async
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.postgres", "connection.sql")


def connection_settings(application_name: str = "reservation") -> dict[str, Any]:
    """Return the settings that all our connections are opened with."""
    return {
        "client_encoding": "UTF8",
        "fallback_application_name": application_name,
        # No statement is prepared: a plan made while the log was small would read all of it once
        # it has grown.
        "prepare_threshold": None,
    }


def connect(
    database_url: str,
    *,
    application_name: str = "reservation",
    autocommit: bool = False,
    kind: type[Connection[tuple[Any, ...]]] = Connection,
) -> Connection[tuple[Any, ...]]:
    """Open a connection, with the settings that our statements rely on.

    Behind a pooler nothing is set, because the session is shared with others.
    """
    check_address(database_url)
    try:
        connection = kind.connect(
            database_url, autocommit=True, **connection_settings(application_name)
        )
        forks.opened(connection)
        _prepare(connection, autocommit)
    except (psycopg.Error, UnicodeError) as error:
        raise _unavailable(error) from error
    return connection


def _prepare(connection: Connection[Any], autocommit: bool) -> None:
    try:
        if not is_pooled(connection):
            set_for_session(connection)
        connection.autocommit = autocommit
    except BaseException:
        connection.close()
        raise


def set_for_session(connection: Connection[Any]) -> None:
    """Set what our statements rely on, over the settings of the role and the database."""
    connection.execute(_QUERIES["settings"])


def set_for_sender(connection: Connection[Any]) -> None:
    """Make a new connection of a pool ready for senders; behind a pooler no setting is changed."""
    forks.opened(connection)
    if not is_pooled(connection):
        connection.execute(_QUERIES["sender_settings"])


async def set_for_sender_async(connection: AsyncConnection[Any]) -> None:
    """Do the same for a pool in an event loop; see `set_for_sender`."""
    forks.opened(connection)
    if not await is_pooled_async(connection):
        await connection.execute(_QUERIES["sender_settings"])


async def connect_async(
    database_url: str, *, application_name: str = "reservation", autocommit: bool = False
) -> AsyncConnection[tuple[Any, ...]]:
    """Open a connection for an event loop, without changing its settings."""
    check_address(database_url)
    try:
        connection = await AsyncConnection.connect(
            database_url,
            autocommit=autocommit,
            **connection_settings(application_name),
        )
    except (psycopg.Error, UnicodeError) as error:
        raise _unavailable(error) from error
    forks.opened(connection)
    return connection


def check_alive(connection: Connection[Any]) -> None:
    """Let a pool discard a connection that the server has closed since it was last used.

    The server's last words have arrived by then, so this takes no round trip, and the first write
    after a restart of the server does not fail. A silent network is not found.
    """
    _find_the_end(connection)


async def check_alive_async(connection: AsyncConnection[Any]) -> None:
    """Do the same for a pool in an event loop; see `check_alive`."""
    _find_the_end(connection)


def _find_the_end(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    for _ in range(2):  # the server's last words come first, and only then the end
        connection.pgconn.consume_input()


def check_encoding(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Refuse a connection of the caller's on which texts are not sent as UTF-8."""
    if connection.closed:
        raise DatabaseUnavailableError("The connection to the database is closed")
    encoding = connection.pgconn.parameter_status(b"client_encoding")
    if encoding != b"UTF8":
        raise StoreError(
            f"The client_encoding of the connection is {(encoding or b'').decode()}, which cannot "
            f"encode every message; SET client_encoding TO 'UTF8'"
        )


def _unavailable(error: Exception) -> DatabaseUnavailableError:
    # A line that asks whether the server runs would be asked again by what follows.
    lines = (line.strip() for line in str(error).splitlines())
    reason = " ".join(" ".join(line for line in lines if not line.endswith("?")).split())
    return DatabaseUnavailableError(f"Cannot reach the database: {reason}. {_way_out(reason)}")


def _way_out(reason: str) -> str:
    """Return what to do; for a refused connection the server gives a reason but no code."""
    if "does not exist" in reason:
        return "Create it, with createdb or createuser, or name another"
    if "authentication failed" in reason or "no password" in reason:
        return "Check the user, and the password in PGPASSWORD, a service file or a password file"
    if names_embedded(reason):
        return (
            "The embedded PostgreSQL stops with the last command that was started without an "
            "address; start one, or unset RESERVATION_DATABASE_URL"
        )
    return "Check that it runs, and the address in --database-url or RESERVATION_DATABASE_URL"


def check_address(database_url: str) -> None:
    """Refuse an address that libpq cannot read."""
    scheme = re.match(r"postgres(?:ql)?\+\w+://", database_url)
    if scheme is not None:
        raise DatabaseUnavailableError(
            f"The database address begins with {scheme[0]}, so it is a URL of SQLAlchemy, which "
            f"names a driver; write postgresql:// instead, and the rest as it is"
        )
    try:
        hosts = str(conninfo.conninfo_to_dict(database_url).get("host") or "")
    except psycopg.Error:
        hosts = "@"
    # A password with an unencoded @ ends up in the host, and from there in messages.
    if "@" in hosts:
        raise DatabaseUnavailableError(
            "The database address cannot be read; write it as "
            "postgresql://user@host:port/database, and the password, percent-encoded, in it, in "
            "PGPASSWORD or in the password file"
        ) from None
