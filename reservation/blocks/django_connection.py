"""Django's ORM on a connection of psycopg whose transaction belongs to somebody else.

The thread gets another connection object for the alias while the block lasts, so that its own one,
which may be open, stays as it is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from inspect import unwrap
from typing import Any

import psycopg
from django.db import connections, transaction
from django.db.backends.postgresql.base import ServerSideCursor
from psycopg import Connection, Rollback
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row

from reservation.blocks.savepoint import Savepoint, savepoint, went_on
from reservation.errors import HandlerError
from reservation.messages.message import StoredMessage
from reservation.postgres.exchange.guarded_cursor import GuardedCursor

_NESTED = "with transaction.atomic():"

# Methods that Django refuses in a thread with an event loop. A handler that is not async may be
# called in one.
_ASYNC_UNSAFE = (
    *("connect", "ensure_connection", "cursor", "create_cursor", "chunked_cursor", "rollback"),
    *("savepoint", "savepoint_rollback", "savepoint_commit", "clean_savepoints"),
)


@contextmanager
def django_on(
    connection: Connection[Any], message: StoredMessage, noted: list[psycopg.Error], using: str
) -> Iterator[None]:
    """Let Django use the connection for an alias while the block lasts; see `savepoint`."""
    own = connections[using]
    _check(own, connection, message)
    with savepoint(connection, message, noted, _NESTED) as block:
        kind: Any = type(own)
        lent = _class_of(kind)(own.settings_dict, using)
        lent.lend(block)
        connections[using] = lent
        try:
            with _time_zone(lent), transaction.atomic(using, savepoint=False):
                yield
        finally:
            connections[using] = own
        if lent.needs_rollback and lent.is_sound:
            raise Rollback if lent.is_rollback_asked else went_on(message, _NESTED)


# Any: Django has no types.
def _check(own: Any, connection: Connection[Any], message: StoredMessage) -> None:
    """Refuse an alias of another database."""
    if own.vendor != "postgresql":
        raise HandlerError(
            f"The handler of {message} cannot use Django's {own.alias!r}, a database of "
            f"{own.vendor}, on the batch's connection; use an alias of the message store's database"
        )
    name = own.settings_dict.get("NAME")
    if name and name != connection.info.dbname:
        raise HandlerError(
            f"The handler of {message} cannot use Django's {own.alias!r}, the database {name!r}, "
            f"on the batch's connection to {connection.info.dbname!r}; use an alias of that"
        )


@contextmanager
def _time_zone(lent: Any) -> Iterator[None]:
    """Set the time zone that Django expects of the session, and set it back."""
    before = lent.connection.info.parameter_status("TimeZone")
    if lent.timezone_name in (None, before):
        yield
        return
    _set_time_zone(lent.connection, lent.timezone_name)
    yield  # an exception rolls back
    if lent.is_sound:
        _set_time_zone(lent.connection, before)


def _set_time_zone(connection: Connection[Any], name: str) -> None:
    connection.execute("SELECT pg_catalog.set_config('TimeZone', %s, true)", [name])


class LentConnection:
    """What a Django connection does otherwise on a connection that is not its own."""

    alias: str
    autocommit: bool
    connection: Connection[Any]
    execute_wrappers: list[Callable[..., Any]]
    get_connection_params: Callable[[], dict[str, Any]]
    savepoint_ids: list[str | None]
    is_rollback_asked = False

    def lend(self, block: Savepoint) -> None:
        """Use the connection of a block, in its transaction."""
        self._block = block
        self._given = self.get_connection_params()
        self.connection = block.connection
        self.autocommit = False
        self.execute_wrappers.append(self._noting)

    @property
    def is_sound(self) -> bool:
        """Whether the transaction is open, and no statement has failed in it."""
        status = self.connection.info.transaction_status
        return status is psycopg.pq.TransactionStatus.INTRANS

    def create_cursor(self, name: str | None = None) -> Any:
        """Return a cursor with Django's adapters, on a connection that has others."""
        cursor: Any
        if name:
            cursor = ServerSideCursor(
                self.connection, name, row_factory=tuple_row, scrollable=False, withhold=False
            )
        else:
            kind = _guarded(self._given["cursor_factory"])
            cursor = kind(self.connection, row_factory=tuple_row)
        cursor._adapters = AdaptersMap(self._given["context"])
        return cursor

    def set_rollback(self, rollback: bool) -> None:
        """Remember that the handler asks for it; Django sets the same flag after an error."""
        super().set_rollback(rollback)  # type: ignore[misc]  # of the class beside this one
        if not any(self.savepoint_ids):  # else it is a nested part that is rolled back
            self.is_rollback_asked = rollback

    def commit(self) -> None:
        """Refuse to commit."""
        raise HandlerError(
            f"The handler of {self._block.message} committed Django's {self.alias!r}, whose rows "
            f"are committed with the message; leave commit() out, and end a part with `{_NESTED}`"
        )

    def on_commit(self, *_: object, **__: object) -> None:
        """Refuse what would never be called."""
        raise HandlerError(
            f"The handler of {self._block.message} called transaction.on_commit, which nothing "
            f"would call; write a message with context.write, and do it in the handler of that"
        )

    def close(self) -> None:
        """Leave the connection open."""

    def _noting(
        self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any
    ) -> Any:
        try:
            return execute(sql, params, many, context)
        except Exception as error:
            self._block.note(error)
            raise


@lru_cache
def _class_of(own: type[Any]) -> type[Any]:
    if issubclass(own, LentConnection):  # of a block around this one
        return own
    unwrapped = {name: unwrap(getattr(own, name)) for name in _ASYNC_UNSAFE}
    return type("LentConnection", (LentConnection, type("Unwrapped", (own,), unwrapped)), {})


@lru_cache
def _guarded(kind: type[Any]) -> type[Any]:
    return type("GuardedDjangoCursor", (GuardedCursor, kind), {})
