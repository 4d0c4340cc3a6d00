"""Putting the store's schemas into a database, in one transaction, as often as one likes."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from psycopg import Connection

from reservation.errors import SchemaError
from reservation.store.errors import INSTALL_HINT, translated

SCHEMA_VERSION = 1
MESSAGE_STORE_VERSION = "1.3.0"

_MESSAGE_STORE_SCRIPTS = ("tables", "names", "indexes", "write", "read", "views", "privileges")
_MIGRATIONS = {1: "001_positions"}

# Installations wait for each other: the first 64 bits of the MD5 of "reservation store install".
_INSTALL_LOCK = 0x7B1C_91A5_3B0E_6D42


@dataclass(frozen=True, slots=True)
class Installed:
    """What an installation found and did.

    Attributes:
        message_store: whether it made schema ``message_store``; otherwise that was there.
        message_store_version: the version of Message DB's interface that the schema has.
        from_version: the version of schema ``reservation`` before; None if it was not there.
        to_version: its version now.
    """

    message_store: bool
    message_store_version: str
    from_version: int | None
    to_version: int


def install(connection: Connection[Any]) -> Installed:
    """Install what is missing and leave the rest as it is.

    Args:
        connection: of a role that may create schemas; not inside a transaction.

    Raises:
        SchemaError: the database was set up by a newer version of this package.
        StoreError: the role may not create what is needed.
    """
    with translated(), connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_INSTALL_LOCK])
        makes_message_store = not _exists(connection, "message_store.messages")
        if makes_message_store:
            for script in _MESSAGE_STORE_SCRIPTS:
                _run(connection, "message_store", script)
        before = _version(connection)
        _refuse_newer(before)
        if before is None:
            _run(connection, "reservation", "schema")
        if before != SCHEMA_VERSION:
            for version, script in sorted(_MIGRATIONS.items()):
                if version > (before or 0):
                    _run(connection, "reservation", script)
                    connection.execute(
                        "INSERT INTO reservation.versions (version) VALUES (%s)", [version]
                    )
            _run(connection, "reservation", "functions")
            _run(connection, "reservation", "privileges")
        return Installed(
            message_store=makes_message_store,
            message_store_version=_message_store_version(connection),
            from_version=before,
            to_version=SCHEMA_VERSION,
        )


def check_installed(connection: Connection[Any]) -> None:
    """Make sure that the database holds the schemas in the version that this package works with.

    Raises:
        SchemaError: it does not; the message names the command that mends it.
    """
    with translated():
        if not _exists(connection, "message_store.messages"):
            raise SchemaError(
                f"The database {connection.info.dbname!r} has no message store: the schema "
                f"message_store is missing; {INSTALL_HINT}"
            )
        interface = _message_store_version(connection)
        version = _version(connection)
    if interface != MESSAGE_STORE_VERSION:
        raise SchemaError(
            f"The message store in database {connection.info.dbname!r} has version {interface}, "
            f"this package works with {MESSAGE_STORE_VERSION}; migrate it with Message DB's own "
            f"scripts, or use another database"
        )
    _refuse_newer(version)
    if version is None:
        raise SchemaError(
            f"The message store in database {connection.info.dbname!r} lacks the schema "
            f"reservation; {INSTALL_HINT}"
        )
    if version < SCHEMA_VERSION:
        raise SchemaError(
            f"The schema reservation in database {connection.info.dbname!r} has version "
            f"{version}, this package needs {SCHEMA_VERSION}; {INSTALL_HINT}"
        )


def _refuse_newer(version: int | None) -> None:
    if version is not None and version > SCHEMA_VERSION:
        raise SchemaError(
            f"The schema reservation has version {version}, newer than the {SCHEMA_VERSION} that "
            f"this package works with; upgrade the package"
        )


def _exists(connection: Connection[Any], relation: str) -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [relation]).fetchone()
    return bool(row and row[0])


def _version(connection: Connection[Any]) -> int | None:
    if not _exists(connection, "reservation.versions"):
        return None
    row = connection.execute("SELECT coalesce(max(version), 0) FROM reservation.versions")
    return int(row.fetchall()[0][0])


def _message_store_version(connection: Connection[Any]) -> str:
    row = connection.execute("SELECT message_store.message_store_version()").fetchall()
    return str(row[0][0])


def _run(connection: Connection[Any], schema: str, script: str) -> None:
    path = files("reservation.store.sql") / schema / f"{script}.sql"
    connection.execute(path.read_bytes())
