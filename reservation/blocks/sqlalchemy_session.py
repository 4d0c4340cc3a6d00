"""A session of SQLAlchemy on a connection of psycopg whose transaction belongs to somebody else.

To SQLAlchemy a savepoint is the whole transaction. So its sessions, nested transactions and events
work as always, but for the commit, which is refused.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy
from psycopg import Connection
from psycopg.rows import tuple_row
from sqlalchemy import event
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg, PGExecutionContext_psycopg
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from reservation.blocks.savepoint import Savepoint, savepoint, went_on
from reservation.errors import HandlerError
from reservation.messages.message import StoredMessage

_NESTED = "with session.begin_nested():"
_BLOCK = "reservation_block"  # the execution option that names a connection's block

# Engines are kept, because the first connection of each asks the server for its properties.
_engines: weakref.WeakKeyDictionary[Connection[Any], sqlalchemy.Engine] = (
    weakref.WeakKeyDictionary()
)


@contextmanager
def session_on(
    connection: Connection[Any], message: StoredMessage, noted: list[psycopg.Error]
) -> Iterator[Session]:
    """Give a new session, flush it in the end, and leave the transaction open; see `savepoint`."""
    with (
        savepoint(connection, message, noted, _NESTED) as block,
        _engine(connection).connect() as bound,
        Session(bound.execution_options(**{_BLOCK: block})) as session,
    ):
        try:
            yield session
            _finish(session, message)
        finally:
            block.is_over = True


def _finish(session: Session, message: StoredMessage) -> None:
    """Flush what is pending, also in nested transactions that were left open."""
    while (nested := session.get_nested_transaction()) is not None and nested.is_active:
        nested.commit()
    if not session.is_active:
        raise went_on(message, _NESTED)
    session.flush()


# Any: what psycopg makes cursors of.
class BatchExecution(PGExecutionContext_psycopg):
    """Executes on cursors with the rows that SQLAlchemy reads, whatever the handler has set."""

    def create_default_cursor(self) -> Any:
        """Return a cursor."""
        return self._dbapi_connection.cursor(row_factory=tuple_row)


class BatchDialect(PGDialect_psycopg):
    """The dialect of connections that are neither set up, nor committed, nor closed."""

    supports_statement_cache = True
    execution_ctx_cls = BatchExecution

    def on_connect(self) -> None:
        """Leave the connection as it is."""

    def get_default_isolation_level(self, *_: Any) -> Any:
        """Return the level of the consumers' transactions."""
        return "READ COMMITTED"

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Leave the transaction open; see `_roll_back`."""

    def do_commit(self, dbapi_connection: Any) -> None:
        """Leave the transaction open; see `_refuse_commit`."""

    def do_close(self, dbapi_connection: Any) -> None:
        """Leave the connection open."""

    def do_terminate(self, dbapi_connection: Any) -> None:
        """Leave the connection open."""


registry.register("postgresql.reservation", __name__, BatchDialect.__name__)


def _engine(connection: Connection[Any]) -> sqlalchemy.Engine:
    engine = _engines.get(connection)
    if engine is None:
        reference = weakref.ref(connection)
        engine = _engines[connection] = sqlalchemy.create_engine(
            "postgresql+reservation://",
            creator=lambda: reference(),
            poolclass=NullPool,
            pool_reset_on_return=None,
            use_native_hstore=False,  # whose adapters would be registered on the connection
        )
        event.listen(engine, "commit", _refuse_commit)
        event.listen(engine, "rollback", _roll_back)
        event.listen(engine, "handle_error", _note_error)
    return engine


def _block(connection: sqlalchemy.Connection | None) -> Savepoint | None:
    return None if connection is None else connection.get_execution_options().get(_BLOCK)


def _refuse_commit(connection: sqlalchemy.Connection) -> None:
    block = _block(connection)
    if block is not None:
        raise HandlerError(
            f"The handler of {block.message} committed its session, whose rows are committed with "
            f"the message; leave commit() out, and end a part with `{_NESTED}`"
        )


def _roll_back(connection: sqlalchemy.Connection) -> None:
    block = _block(connection)
    if block is not None:
        block.roll_back()


def _note_error(raised: ExceptionContext) -> None:
    block = _block(raised.connection)
    if block is not None and raised.original_exception is not None:
        block.note(raised.original_exception)
