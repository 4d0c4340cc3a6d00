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
    """What became of the last transaction of `transaction_of`, once `exchange` was to commit it."""

    OPEN = "open"
    COMMITTED = "committed"
    REFUSED = "refused"  # by the commit itself, and no statement before it


class Unanswered:
    """What was sent on a connection, and whose answers are to be taken.

    Attributes:
        was_disturbed: whether somebody tried to use the connection meanwhile.
    """

    def __init__(self) -> None:
        self.was_disturbed = False


class KeepingConnection(Connection[Any]):
    """A connection that prepares what `exchange` sends, and sends it together.

    Its session must be its own, so it is not for a pooler.

    Attributes:
        prepared: the names of what is prepared.
        prefix: what they begin with.
        begun: whether the block of a `transaction_of` runs, whose transaction is open.
        end: what became of its transaction within the block.
        sent: what was sent, as long as its answers are not taken.
    """

    # Any: what psycopg makes a connection of.
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_factory = GuardedCursor
        self.prepared: Names = {}
        self.prefix = f"reservation_{secrets.token_hex(4)}"  # a pooler may keep names of others
        self.begun = False
        self.end = End.OPEN
        self.sent: Unanswered | None = None
        register_arrays(self)

    # Any: what psycopg's generators give.
    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Wait for what psycopg has sent; refused while answers are to be taken."""
        if self.sent is not None:
            self.sent.was_disturbed = True
            raise psycopg.ProgrammingError("the connection is in use for what was sent before")
        return super().wait(*arguments, **options)

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
                f"{what}() is forbidden within the transaction of somebody else"
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


def awaits_answers(connection: Connection[Any]) -> bool:
    """Return whether answers are to be taken of what was sent on a connection."""
    return isinstance(connection, KeepingConnection) and connection.sent is not None
