"""Installing the store's schemas in a database and removing ours again, in one transaction each.

`install` makes what is missing. `attach` and `detach` are for a database that Message DB set up:
they add and remove the schema ``reservation`` and change nothing else.
"""

import time
from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg import errors as pg

from reservation.errors import LockTimeoutError, SchemaError, StoreError
from reservation.postgres.error_translation import INSTALL_HINT, translated
from reservation.postgres.queries import load_queries
from reservation.store.schema.category_lock import refuse_replaced_lock
from reservation.store.schema.missing_rights import KnownRole, known_roles, renew_rights
from reservation.store.schema.notice_trigger import may_switch, notices_given, switch_notices
from reservation.store.schema.scripts import (
    FUNCTION_SCRIPTS,
    MESSAGE_STORE_SCRIPTS,
    MESSAGE_STORE_VERSION,
    MIGRATIONS,
    REPLACEABLE_SCRIPTS,
    Migrations,
    function_names,
    script_text,
)

_QUERIES = load_queries("reservation.store.schema", "install.sql")

# Held while the schemas, or the rights on them, are changed: the first 64 bits of the MD5 of
# "reservation store install".
INSTALL_LOCK = 0x7B1C_91A5_3B0E_6D42

# Seconds in which sessions of consumers that have just ended are waited for.
CLOSING = 1.0


@dataclass(frozen=True, slots=True)
class Installed:
    """The result of an installation, or an attachment.

    Attributes:
        message_store: whether it made the schema ``message_store``.
        message_store_version: the version of Message DB's interface that the schema has.
        from_version: the version of schema ``reservation`` before; None if it was not there.
        to_version: its version now.
        restored: how many functions were missing from the schema ``reservation``, although it had
            that version, and were made again.
        notices: whether writers wake up waiting consumers, afterwards.
    """

    message_store: bool
    message_store_version: str
    from_version: int | None
    to_version: int
    restored: int = 0
    notices: bool = False


@dataclass(frozen=True, slots=True)
class Detached:
    """The contents and dependents of schema ``reservation``.

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


def install(connection: Connection[Any], *, migrations: Migrations = MIGRATIONS) -> Installed:
    """Install what is missing, and upgrade what an older version of this package installed.

    A schema ``message_store`` that Message DB made is left as it is. In one of our own, a new
    schema ``reservation`` comes with notices of new messages; one that is upgraded keeps what was
    chosen.

    Args:
        connection: of a role that may create schemas; not inside a transaction.
        migrations: the scripts that lead to the version of this package.

    Raises:
        SchemaError: the database was set up by a newer version of this package, or has the schema
            ``reservation`` without a message store; or its function ``acquire_lock`` was replaced
            by one that does not lock the category of a stream.
        StoreError: the role may not create what is needed.
    """
    with translated(), connection.transaction():
        begin_change(connection)
        makes_message_store = not _exists(connection, "message_store.messages")
        if makes_message_store:
            _refuse_positions_of_another_log(connection)
            for script in MESSAGE_STORE_SCRIPTS:
                _run(connection, "message_store", script)
        else:
            refuse_replaced_lock(connection)
        before, restored = _add_reservation(connection, migrations)
        if not makes_message_store and before != migrations.version and _is_ours(connection):
            for script in REPLACEABLE_SCRIPTS:
                _run(connection, "message_store", script)
        if before is None and _is_ours(connection) and may_switch(connection):
            switch_notices(connection, on=True)
        return Installed(
            message_store=makes_message_store,
            message_store_version=str(_message_store_version(connection)),
            from_version=before,
            to_version=migrations.version,
            restored=restored,
            notices=notices_given(connection),
        )


def attach(connection: Connection[Any], *, migrations: Migrations = MIGRATIONS) -> Installed:
    """Add the schema ``reservation`` to an existing message store, and change nothing else.

    Args:
        connection: of a role that may create schemas and write to the store; not inside a
            transaction.
        migrations: as in `install`.

    Raises:
        SchemaError: there is no message store, or it is not Message DB 1.3.0's; or its function
            ``acquire_lock`` was replaced by one that does not lock the category of a stream; or a
            newer version of this package was attached.
        StoreError: the role may not create what is needed.
    """
    with translated(), connection.transaction():
        begin_change(connection)
        _check_message_store(connection)
        _check_may_use_messages(connection)
        refuse_replaced_lock(connection)
        before, restored = _add_reservation(connection, migrations)
        return Installed(
            message_store=False,
            message_store_version=MESSAGE_STORE_VERSION,
            from_version=before,
            to_version=migrations.version,
            restored=restored,
            notices=notices_given(connection),
        )


def attached(connection: Connection[Any]) -> Detached:
    """Return what `detach` would remove."""
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
        _refuse_newer(version, MIGRATIONS)
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


def check_installed(connection: Connection[Any], *, migrations: Migrations = MIGRATIONS) -> None:
    """Make sure that the database holds the schemas in the version that this package works with."""
    if not is_attached(connection, migrations=migrations):
        raise SchemaError(
            f"The message store in database {connection.info.dbname!r} lacks the schema "
            f"reservation; {INSTALL_HINT}"
        )


def is_attached(connection: Connection[Any], *, migrations: Migrations = MIGRATIONS) -> bool:
    """Return whether a message store has the schema ``reservation`` beside it."""
    with translated():
        _check_message_store(connection)
        version = _version(connection)
        _refuse_newer(version, migrations)
    if version is not None and version < migrations.version:
        raise SchemaError(
            f"The schema reservation in database {connection.info.dbname!r} has version "
            f"{version}, this package needs {migrations.version}; {INSTALL_HINT}"
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


def _add_reservation(connection: Connection[Any], migrations: Migrations) -> tuple[int | None, int]:
    """Bring schema ``reservation`` to the last version."""
    before = _version(connection)
    _refuse_newer(before, migrations)
    missing = 0
    if before == migrations.version:
        missing = len(function_names() - _functions(connection))
        if not missing:
            return before, 0
    roles: list[KnownRole] = []
    if before is None:
        _run(connection, "reservation", "tables")
        connection.execute(_QUERIES["record_version"], [1])
    else:
        roles = known_roles(connection)
    functions = _functions(connection)
    for version, script in migrations.after(before or 1):
        connection.execute(script)
        connection.execute(_QUERIES["record_version"], [version])
    for name in FUNCTION_SCRIPTS:
        _run(connection, "reservation", name)
    renew_rights(connection, roles, functions)
    return before, missing


def _functions(connection: Connection[Any]) -> set[str]:
    return {name for (name,) in connection.execute(_QUERIES["functions"])}


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
    deadline = time.monotonic() + CLOSING
    while running := [row[0] for row in connection.execute(_QUERIES["running"])]:
        if time.monotonic() < deadline:
            connection.execute(_QUERIES["look_again"])
            continue
        raise StoreError(
            f"A consumer is running on the database {connection.info.dbname!r}: "
            f"{', '.join(running)}; stop it, and detach again"
        )


def _refuse_newer(version: int | None, migrations: Migrations) -> None:
    if version is not None and version > migrations.version:
        raise SchemaError(
            f"The schema reservation has version {version}, newer than the {migrations.version} "
            f"that this package works with; upgrade the package"
        )


def _exists(connection: Connection[Any], relation: str) -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [relation]).fetchone()
    return bool(row and row[0])


def _version(connection: Connection[Any]) -> int | None:
    if not _exists(connection, "reservation.versions"):
        return None
    ((version,),) = connection.execute(_QUERIES["version"]).fetchall()
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
