"""What a store is given: a pool, or what has a psycopg connection in a transaction of the caller's.

SQLAlchemy and Django are never imported here. An object of theirs comes from a program that has
imported them, so their classes are looked up among the modules that are loaded.
"""

import sys
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from psycopg import AsyncConnection, Connection
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from reservation.errors import StoreError

if TYPE_CHECKING:
    import sqlalchemy
    import sqlalchemy.ext.asyncio as aio
    from sqlalchemy import orm

# What has a transaction. A Django connection does too, but Django has no types.
Session: TypeAlias = "orm.Session | orm.scoped_session[orm.Session]"
InTransaction: TypeAlias = "Connection[Any] | sqlalchemy.Connection | Session"
AsyncSession: TypeAlias = "aio.AsyncSession | aio.async_scoped_session[aio.AsyncSession]"
AsyncInTransaction: TypeAlias = "AsyncConnection[Any] | aio.AsyncConnection | AsyncSession"

_SYNC, _ASYNC = (Connection, ConnectionPool), (AsyncConnection, AsyncConnectionPool)

# Classes by the names that their packages export them under.
_SESSION, _SCOPED = "sqlalchemy.orm.Session", "sqlalchemy.orm.scoped_session"
_SQLALCHEMY = ("sqlalchemy.Connection", _SESSION, _SCOPED)
_ASYNC_SESSION = "sqlalchemy.ext.asyncio.AsyncSession"
_ASYNC_SCOPED = "sqlalchemy.ext.asyncio.async_scoped_session"
_ASYNC_SQLALCHEMY = ("sqlalchemy.ext.asyncio.AsyncConnection", _ASYNC_SESSION, _ASYNC_SCOPED)
_DJANGO_PROXY = "django.utils.connection.ConnectionProxy"
_DJANGO = ("django.db.backends.base.base.BaseDatabaseWrapper", _DJANGO_PROXY)
_ENGINES = (
    *("sqlalchemy.Engine", "sqlalchemy.orm.sessionmaker"),
    *("sqlalchemy.ext.asyncio.AsyncEngine", "sqlalchemy.ext.asyncio.async_sessionmaker"),
)

_AFTER_COMMIT = (
    "send after the commit with open(database_url), and again if it may have failed: a command "
    "takes effect once"
)


def check_source(source: object) -> None:
    """Refuse what a `MessageStore` cannot take."""
    if _is(source, *_DJANGO):
        if source.vendor != "postgresql":  # there Django uses psycopg 3, as it is installed
            raise _other_database(source.vendor)
    elif _is(source, *_SQLALCHEMY):
        if not _is(source, _SCOPED):  # has perhaps no session here and now
            _check(source)
    elif not isinstance(source, _SYNC):
        raise StoreError(
            f"A MessageStore takes a psycopg Connection or ConnectionPool, a SQLAlchemy Connection "
            f"or Session, or a Django connection, not a {type(source).__name__}; {_way_out(source)}"
        )


def check_async_source(source: object) -> None:
    """Refuse what an `AsyncMessageStore` cannot take."""
    if _is(source, *_ASYNC_SQLALCHEMY):
        if not _is(source, _ASYNC_SCOPED):
            _check(getattr(source, "sync_session", source))
    elif not isinstance(source, _ASYNC):
        raise StoreError(
            f"An AsyncMessageStore takes a psycopg AsyncConnection or AsyncConnectionPool, or a "
            f"SQLAlchemy AsyncConnection or AsyncSession, not a {type(source).__name__}; "
            f"{_way_out(source)}"
        )


# Any: the classes of SQLAlchemy and Django are not known here.
def connection_of(source: Any) -> Connection[Any]:
    """Return the connection whose transaction is open, or is begun by its next statement."""
    if isinstance(source, Connection):
        return source
    if _is(source, *_DJANGO):
        source.validate_no_broken_transaction()
        with source.cursor() as cursor:  # opens the connection, if it is not open
            return cursor.connection  # type: ignore[no-any-return]
    if _is(source, _SCOPED):
        source = source()
        _check(source)
    connection = source.connection() if _is(source, _SESSION) else source
    _check(connection)
    if not connection.in_transaction():
        connection.begin()  # as its own statements do; it would not commit ours without
    return connection.connection.driver_connection  # type: ignore[no-any-return]


async def async_connection_of(source: Any) -> AsyncConnection[Any]:
    """Do the same in an event loop; see `connection_of`."""
    if isinstance(source, AsyncConnection):
        return source
    if _is(source, _ASYNC_SCOPED):
        source = source()
        _check(source.sync_session)
    connection = await source.connection() if _is(source, _ASYNC_SESSION) else source
    _check(connection)
    if not connection.in_transaction():
        await connection.begin()
    return (await connection.get_raw_connection()).driver_connection  # type: ignore[no-any-return]


def is_looked_up(source: object) -> bool:
    """Return whether a source has no connection itself, but finds that of a thread or task."""
    return _is(source, _SCOPED, _ASYNC_SCOPED, _DJANGO_PROXY)


def is_of_psycopg(source: object) -> bool:
    """Return whether a source is psycopg's own, with which a caller may write in autocommit."""
    return isinstance(source, (*_SYNC, *_ASYNC))


def autocommits() -> StoreError:
    """Return the error for a message that would be committed by itself."""
    return StoreError(
        "The connection is in autocommit, so the message would be committed by itself; send it in "
        "a transaction: Django's transaction.atomic(), psycopg's connection.transaction(), or "
        "SQLAlchemy's without the isolation level AUTOCOMMIT"
    )


def _is(source: object, *names: str) -> TypeGuard[Any]:
    """Return whether an object is of one of these classes, some of which may not be loaded."""
    for name in names:
        module, _, class_name = name.rpartition(".")
        class_ = getattr(sys.modules.get(module), class_name, None)
        if class_ is not None and isinstance(source, class_):
            return True
    return False


def _check(source: Any) -> None:
    """Refuse a session or a connection whose transaction a message cannot be part of."""
    if _is(source, _SESSION):
        if source.twophase:
            raise StoreError(
                "PostgreSQL cannot prepare a transaction that sends notices, as each message does; "
                "make the session without twophase=True"
            )
        # SQLAlchemy 2.0 has a private name for what 2.1 calls `binds`.
        binds = getattr(source, "binds", None) or getattr(source, "_Session__binds", {})
        engines = {bind.engine for bind in (source.bind, *binds.values()) if bind is not None}
    else:
        engines = {source.sync_engine if hasattr(source, "sync_engine") else source.engine}
    if len(engines) > 1:
        raise StoreError(
            f"The session is bound to {len(engines)} engines, which do not commit together; give "
            f"the store a session, or a connection, of the one that the message store is in"
        )
    for engine in engines:
        if engine.dialect.name != "postgresql":
            raise _other_database(engine.dialect.name)
        if engine.dialect.driver not in ("psycopg", "psycopg_async"):
            raise StoreError(
                f"The engine's driver is {engine.dialect.driver}, and a message is written on a "
                f"connection of psycopg 3; make the engine with postgresql+psycopg://"
            )


def _other_database(name: str) -> StoreError:
    return StoreError(
        f"The message store is in PostgreSQL, and cannot be part of a transaction of {name}; "
        f"{_AFTER_COMMIT}"
    )


def _way_out(source: object) -> str:
    driver = type(source).__module__.partition(".")[0]
    if driver in ("asyncpg", "psycopg2", "pg8000"):
        return f"connect with psycopg 3 instead of {driver}"
    if _is(source, *_ENGINES):
        return "give one of its sessions or connections, which has a transaction"
    if isinstance(source, _ASYNC) or _is(source, *_ASYNC_SQLALCHEMY):
        return "AsyncMessageStore takes those"
    if isinstance(source, _SYNC) or _is(source, *_SQLALCHEMY, *_DJANGO):
        return "MessageStore takes those"
    return _AFTER_COMMIT
