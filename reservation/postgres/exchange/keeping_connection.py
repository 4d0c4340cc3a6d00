"""A connection that keeps the statements that it has prepared."""

import secrets
from enum import Enum
from typing import Any, TypeGuard

import psycopg
from psycopg import Connection
from psycopg.pq import PipelineStatus

from reservation.postgres.arrays import register_arrays
from reservation.postgres.exchange.guarded_cursor import GuardedCursor

# The names of the statements that a connection has prepared, by their texts and types.
Names = dict[tuple[bytes, tuple[int, ...]], bytes]


class End(Enum):
    """The outcome of the last transaction of `transaction_of`, once `exchange` was to commit it."""

    OPEN = "open"
    COMMITTED = "committed"
    REFUSED = "refused"  # by the commit itself, and no statement before it


class KeepingConnection(Connection[Any]):
    """A connection that prepares what `exchange` sends, and sends it together.

    Its session must be its own, so it is not for a pooler.

    Attributes:
        prepared: the names of what is prepared.
        prefix: what they begin with.
        begun: whether the block of a `transaction_of` runs, whose transaction is open.
        end: what became of its transaction within the block.
    """

    # Any: what psycopg makes a connection of.
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_factory = GuardedCursor
        self.prepared: Names = {}
        self.prefix = f"reservation_{secrets.token_hex(4)}"  # a pooler may keep names of others
        self.begun = False
        self.end = End.OPEN
        register_arrays(self.adapters)

    def commit(self) -> None:
        """Commit; refused in `transaction_of`, whose end that is."""
        self._refuse("commit")
        super().commit()

    def rollback(self) -> None:
        """Roll back; refused in `transaction_of`, whose end that is."""
        self._refuse("rollback")
        super().rollback()

    def _refuse(self, what: str) -> None:
        if self.begun:
            raise psycopg.ProgrammingError(
                f"{what}() is forbidden within the consumer's transaction"
            )


def keeps_statements(connection: Connection[Any]) -> TypeGuard[KeepingConnection]:
    """Return whether a connection prepares and sends as `KeepingConnection` does, at this moment.

    In a pipeline of psycopg's it does not.
    """
    in_pipeline = connection.pgconn.pipeline_status != PipelineStatus.OFF
    return isinstance(connection, KeepingConnection) and not in_pipeline


def was_closed(connection: Connection[Any]) -> bool:
    """Return whether a connection was closed by this process, and not lost."""
    # None once libpq's own `finish` was called.
    is_there = getattr(connection.pgconn, "pgconn_ptr", None) is not None
    return connection.closed and not (connection.broken and is_there)
