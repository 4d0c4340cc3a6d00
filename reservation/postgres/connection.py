"""Connecting to the database that an address names.

The address is a libpq URL or connection string; what it leaves open, libpq adds from its own
variables, service file and password file.
"""

from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection, conninfo

from reservation.errors import DatabaseUnavailableError, StoreError
from reservation.postgres.pooler import is_pooled
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.postgres", "connection.sql")


def connection_settings(application_name: str = "reservation") -> dict[str, Any]:
    """Return what every connection of ours is opened with, beside its address."""
    return {
        "client_encoding": "UTF8",
        "fallback_application_name": application_name,
        # No statement is prepared: a plan that was made while the log was small, and kept, would
        # read all of it once it has grown.
        "prepare_threshold": None,
    }


def connect(
    database_url: str, *, application_name: str = "reservation", autocommit: bool = False
) -> Connection[tuple[Any, ...]]:
    """Open a connection, with the settings that our statements rely on.

    Behind a pooler nothing is set, because others might meet it in the same session.

    Args:
        database_url: a libpq URL or connection string; empty for libpq's own defaults.
        application_name: what the server's own views show for the connection.
        autocommit: whether each statement is a transaction of its own.

    Raises:
        DatabaseUnavailableError: there is no such database, or it does not let us in. The text
            holds the host, port and database, never a password.
    """
    check_address(database_url)
    try:
        connection = psycopg.connect(
            database_url, autocommit=True, **connection_settings(application_name)
        )
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
    """Set what our statements rely on, whatever the role or the database has set.

    Args:
        connection: in autocommit, with a session of its own.
    """
    connection.execute(_QUERIES["settings"])


async def connect_async(
    database_url: str, *, application_name: str = "reservation", autocommit: bool = False
) -> AsyncConnection[tuple[Any, ...]]:
    """Open a connection for an event loop, with its settings as they are."""
    check_address(database_url)
    try:
        return await AsyncConnection.connect(
            database_url,
            autocommit=autocommit,
            **connection_settings(application_name),
        )
    except (psycopg.Error, UnicodeError) as error:
        raise _unavailable(error) from error


def check_alive(connection: Connection[Any]) -> None:
    """Let a pool throw away a connection that the server has closed since it was last used.

    What the server said last is there already, so it costs no round trip, and the first write after
    a restart of the server does not fail. A network that went silent does not show.

    Raises:
        psycopg.OperationalError: it is closed.
    """
    _find_the_end(connection)


async def check_alive_async(connection: AsyncConnection[Any]) -> None:
    """Do the same for a pool in an event loop; see `check_alive`."""
    _find_the_end(connection)


def _find_the_end(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    for _ in range(2):  # the server's last words come first, and only then the end
        connection.pgconn.consume_input()


def check_encoding(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Refuse a connection of the caller's on which texts are not sent as UTF-8.

    Raises:
        StoreError: it is set to another encoding.
    """
    encoding = connection.pgconn.parameter_status(b"client_encoding")
    if encoding != b"UTF8":
        raise StoreError(
            f"The client_encoding of the connection is {(encoding or b'').decode()}, which not "
            f"every message can be told in; SET client_encoding TO 'UTF8'"
        )


def _unavailable(error: Exception) -> DatabaseUnavailableError:
    reason = " ".join(str(error).split())
    return DatabaseUnavailableError(f"Cannot reach the database: {reason}. {_way_out(reason)}")


def _way_out(reason: str) -> str:
    """Return what to do; before the connection is there, the server gives a reason but no code."""
    if "does not exist" in reason:
        return "Create it, with createdb or createuser, or name another"
    if "authentication failed" in reason or "no password" in reason:
        return "Check the user, and the password in PGPASSWORD, a service file or a password file"
    return "Check that it runs, and the address in --database-url or RESERVATION_DATABASE_URL"


def check_address(database_url: str) -> None:
    """Refuse an address that libpq cannot read.

    Raises:
        DatabaseUnavailableError: it is neither a URL nor a connection string. libpq's own message
            is withheld, because it repeats the address and so a password in it.
    """
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
