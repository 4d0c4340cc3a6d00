"""Installing the store's schemas in a database and removing ours again, in one transaction each.

`install` makes what is missing. `attach` and `detach` are for a database that Message DB set up:
they add and remove the schema ``reservation`` and change nothing else.

The schema is upgraded before the programs. Those of a former version, from 11, go on on it: tables
and functions keep what these use, and the rights on them.
"""

from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg import errors as pg

from reservation.errors import LockTimeoutError, SchemaError, StoreError
from reservation.postgres.error_translation import INSTALL_HINT, translated
from reservation.postgres.queries import load_queries
from reservation.store.schema.missing_rights import known_roles, renew_rights
from reservation.store.schema.scripts import (
    BREAKING,
    FIRST_TO_GO_ON,
    FUNCTION_SCRIPTS,
    MESSAGE_STORE_SCRIPTS,
    MESSAGE_STORE_VERSION,
    MIGRATIONS,
    REPLACEABLE_SCRIPTS,
    SCHEMA_VERSION,
    function_names,
    script_text,
)

_QUERIES = load_queries("reservation.store.schema", "install.sql")

# Held while the schemas, or the rights on them, are changed: the first 64 bits of the MD5 of
# "reservation store install".
INSTALL_LOCK = 0x7B1C_91A5_3B0E_6D42


@dataclass(frozen=True, slots=True)
class Installed:
    """What an installation, or an attachment, found and did.

    Attributes:
        message_store: whether it made the schema ``message_store``.
        message_store_version: the version of Message DB's interface that the schema has.
        from_version: the version of schema ``reservation`` before; None if it was not there.
        to_version: its version now.
        restored: how many functions were missing from the schema ``reservation``, although it had
            that version, and were made again.
    """

    message_store: bool
    message_store_version: str
    from_version: int | None
    to_version: int
    restored: int = 0


@dataclass(frozen=True, slots=True)
class Detached:
    """What schema ``reservation`` held, and what went with it.

    Attributes:
        version: its version; None if it was missing, and nothing was done.
        positions: the consumers, the category that each read, and its position there.
        dependents: what outside the schema depended on it and was removed with it, such as
            ``trigger wake_up on message_store.messages``.
        scheduled: how many scheduled messages it held that were not written.
    """

    version: int | None
    positions: tuple[tuple[str, str, int], ...] = ()
    dependents: tuple[str, ...] = ()
    scheduled: int = 0


def install(connection: Connection[Any]) -> Installed:
    """Install what is missing, and upgrade what an older version of this package installed.

    A schema ``message_store`` that Message DB made is left as it is.

    Args:
        connection: of a role that may create schemas; not inside a transaction.

    Raises:
        SchemaError: the database was set up by a newer version of this package, or has the schema
            ``reservation`` without a message store.
        StoreError: the role may not create what is needed.
    """
    with translated(), connection.transaction():
        begin_change(connection)
        makes_message_store = not _exists(connection, "message_store.messages")
        if makes_message_store:
            _refuse_positions_of_another_log(connection)
            for script in MESSAGE_STORE_SCRIPTS:
                _run(connection, "message_store", script)
        before, restored = _add_reservation(connection)
        is_older = before is None or before < SCHEMA_VERSION
        if not makes_message_store and is_older and _is_ours(connection):
            for script in REPLACEABLE_SCRIPTS:
                _run(connection, "message_store", script)
        return Installed(
            message_store=makes_message_store,
            message_store_version=str(_message_store_version(connection)),
            from_version=before,
            to_version=max(SCHEMA_VERSION, before or 0),
            restored=restored,
        )


def attach(connection: Connection[Any]) -> Installed:
    """Add the schema ``reservation`` to an existing message store, and change nothing else.

    Args:
        connection: of a role that may create schemas and write to the store; not inside a
            transaction.

    Raises:
        SchemaError: there is no message store, or it is not Message DB 1.3.0's; or a newer version
            of this package was attached.
        StoreError: the role may not create what is needed.
    """
    with translated(), connection.transaction():
        begin_change(connection)
        _check_message_store(connection)
        _check_may_use_messages(connection)
        before, restored = _add_reservation(connection)
        return Installed(
            message_store=False,
            message_store_version=MESSAGE_STORE_VERSION,
            from_version=before,
            to_version=max(SCHEMA_VERSION, before or 0),
            restored=restored,
        )


def attached(connection: Connection[Any]) -> Detached:
    """Return what `detach` would remove.

    Args:
        connection: of a role that may read the schema.

    Raises:
        SchemaError: the schema ``reservation`` is not this package's, or is newer.
    """
    with translated():
        if not _exists(connection, "reservation.versions"):
            rows = connection.execute("SELECT to_regnamespace('reservation')").fetchall()
            if rows[0][0] is not None:
                raise SchemaError(
                    f"The schema reservation in database {connection.info.dbname!r} was not made "
                    f"by this package: it has no table versions; it is left as it is"
                )
            return Detached(None)
        version = _version(connection)
        _refuse_newer(connection, version)
        scheduled = 0
        if _exists(connection, "reservation.scheduled"):  # since version 19
            ((scheduled,),) = connection.execute(_QUERIES["scheduled"]).fetchall()
        return Detached(
            version,
            tuple(connection.execute(_QUERIES["positions"])),
            tuple(row[0] for row in connection.execute(_QUERIES["dependents"])),
            scheduled,
        )


def detach(connection: Connection[Any]) -> Detached:
    """Remove the schema ``reservation`` and what depends on it; the messages stay.

    The positions of the consumers are removed with it: after another `attach` they begin at the
    start of their categories.

    Args:
        connection: of the role that attached, or of a superuser; not inside a transaction.

    Returns:
        What was removed.

    Raises:
        StoreError: a consumer is running, or the role may not remove the schema.
        LockTimeoutError: another program has been using the schema for too long.
        SchemaError: the schema is not this package's, or is newer.
    """
    with translated(), connection.transaction():
        begin_change(connection)
        if attached(connection).version is None:
            return Detached(None)
        _refuse_running(connection)
        try:
            connection.execute(_QUERIES["lock"])
        except pg.LockNotAvailable as error:
            raise LockTimeoutError(
                "The schema reservation is in use by a program that does not release it; "
                "pg_stat_activity shows which; end it, and detach again"
            ) from error
        # One that has started in between waits for the lock, and then finds no schema.
        connection.execute("SELECT pg_stat_clear_snapshot()")
        _refuse_running(connection)
        removed = attached(connection)
        connection.execute("DROP SCHEMA reservation CASCADE")
        return removed


def check_installed(connection: Connection[Any]) -> None:
    """Make sure that the database holds the schemas in the version that this package works with.

    Raises:
        SchemaError: it does not; the message names the command to run.
    """
    if not is_attached(connection):
        raise SchemaError(
            f"The message store in database {connection.info.dbname!r} lacks the schema "
            f"reservation; {INSTALL_HINT}"
        )


def is_attached(connection: Connection[Any]) -> bool:
    """Return whether a message store has the schema ``reservation`` beside it.

    Raises:
        SchemaError: there is no message store, or one of the two has another version than this
            package works with.
    """
    with translated():
        _check_message_store(connection)
        version = _version(connection)
        _refuse_newer(connection, version)
    if version is not None and version < SCHEMA_VERSION:
        raise SchemaError(
            f"The schema reservation in database {connection.info.dbname!r} has version "
            f"{version}, this package needs {SCHEMA_VERSION}; {INSTALL_HINT}"
        )
    return version is not None


def begin_change(connection: Connection[Any]) -> None:
    """Wait for other changes of the schemas, and look up names among the server's own first.

    Function bodies that are parsed when they are made could otherwise refer to the schema public.
    """
    connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [INSTALL_LOCK])


def _refuse_positions_of_another_log(connection: Connection[Any]) -> None:
    """Refuse a new log beside positions in an old one: consumers would skip its messages."""
    if _version(connection) is not None:
        raise SchemaError(
            f"The database {connection.info.dbname!r} has the schema reservation, but the message "
            f"store that it belonged to is gone, and its positions are those of another log; run "
            f"`reservation store detach`, and then install again"
        )


def _is_ours(connection: Connection[Any]) -> bool:
    """Return whether the schema ``message_store`` is one that this package made."""
    row = connection.execute(_QUERIES["is_ours"]).fetchone()
    return bool(row and row[0])


def _add_reservation(connection: Connection[Any]) -> tuple[int | None, int]:
    """Bring schema ``reservation`` to this package's version.

    Returns:
        The version that it had, and how many of its functions were missing nevertheless.
    """
    before = _version(connection)
    _refuse_newer(connection, before)
    if before is not None and before > SCHEMA_VERSION:
        return before, 0  # its functions are newer than those of this package
    goes_on = before is not None and before >= FIRST_TO_GO_ON
    roles = known_roles(connection) if goes_on else []
    if before is None:
        _run(connection, "reservation", "schema")
    functions = {name for (name,) in connection.execute(_QUERIES["functions"])}
    missing = 0
    if before != SCHEMA_VERSION:
        for version, script in sorted(MIGRATIONS.items()):
            if version > (before or 0):
                _run(connection, "reservation", script)
                refuses_former = version <= FIRST_TO_GO_ON or version in BREAKING
                record = "record_version" if refuses_former else "record_upgrade"
                connection.execute(_QUERIES[record], [version])
        if before is None:
            _run(connection, "reservation", "known_corrections")
    else:
        missing = len(function_names() - functions)
    if before != SCHEMA_VERSION or missing:
        for script in FUNCTION_SCRIPTS:
            _run(connection, "reservation", script)
        renew_rights(connection, roles, functions)
    return before, missing


def _check_message_store(connection: Connection[Any]) -> None:
    name = connection.info.dbname
    if not _exists(connection, "message_store.messages"):
        raise SchemaError(
            f"The database {name!r} has no message store: the schema message_store is missing; "
            f"{INSTALL_HINT}"
        )
    version = _message_store_version(connection)
    if version != MESSAGE_STORE_VERSION:
        raise SchemaError(
            f"The message store in database {name!r} has version {version or 'unknown'}, this "
            f"package works with {MESSAGE_STORE_VERSION}; migrate it with Message DB's own "
            f"scripts, or use another database"
        )


def _check_may_use_messages(connection: Connection[Any]) -> None:
    rows = connection.execute(_QUERIES["may_use_messages"]).fetchall()
    may, role = rows[0]
    if not may:
        raise StoreError(
            f"The role {role} may not read and write message_store.messages, and the functions "
            f"that are to be attached do so with its rights; connect as the owner of the store"
        )


def _refuse_running(connection: Connection[Any]) -> None:
    running = [row[0] for row in connection.execute(_QUERIES["running"])]
    if running:
        raise StoreError(
            f"A consumer is running on the database {connection.info.dbname!r}: "
            f"{', '.join(running)}; stop it, and detach again"
        )


def _refuse_newer(connection: Connection[Any], version: int | None) -> None:
    """Refuse a schema that this version of the package cannot work with, because it is newer."""
    if version is None or version <= SCHEMA_VERSION:
        return
    ((needed,),) = connection.execute(_QUERIES["version"]).fetchall()
    if needed > SCHEMA_VERSION:
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
    ((version,),) = connection.execute(_QUERIES["version"]).fetchall()
    if version >= FIRST_TO_GO_ON and _exists(connection, "reservation.upgrades"):
        ((upgraded,),) = connection.execute(_QUERIES["upgraded"]).fetchall()
        version = max(version, upgraded)
    return int(version)


def _message_store_version(connection: Connection[Any]) -> str | None:
    """Return the version that the message store reports; None if it reports none."""
    function = "message_store.message_store_version()"
    known = connection.execute("SELECT to_regprocedure(%s)", [function]).fetchall()
    if known[0][0] is None:
        return None
    row = connection.execute("SELECT message_store.message_store_version()").fetchall()
    return str(row[0][0])


def _run(connection: Connection[Any], schema: str, script: str) -> None:
    connection.execute(script_text(schema, script))
