"""A connection that keeps the statements that it has prepared."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeGuard

import psycopg
from psycopg import Connection
from psycopg.abc import PQGen
from psycopg.pq import PipelineStatus

from reservation.postgres.arrays import register_arrays
from reservation.postgres.exchange.deferring import Deferred, DeferringCursor, TakenBackError

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
        deferred: the statements that wait to be sent together; None outside of `together`.
    """

    deferred: Deferred | None = None

    # Any: what psycopg makes a connection of.
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_factory = DeferringCursor
        self.prepared: Names = {}
        self.prefix = f"reservation_{secrets.token_hex(4)}"  # a pooler may keep names of others
        self.begun = False
        self.end = End.OPEN
        register_arrays(self.adapters)

    @contextmanager
    def together(self, answered: Callable[[], None]) -> Iterator[None]:
        """Run a block in a transaction whose statements are sent together, see `deferring`.

        If anything in it fails, what it did is taken back, and `TakenBackError` is raised; where
        that is not possible, the error itself. It is reported when answers come.
        """
        deferred = self.deferred = Deferred(answered, self._num_transactions)
        try:
            yield
            with self.lock:
                self.send_deferred(to_end=True)
            deferred.check()
        except Exception as error:
            self.deferred = None
            if deferred.take_back(self):
                raise TakenBackError from error
            raise
        finally:
            self.deferred = None

    def send_deferred(self, *, to_end: bool = False) -> None:
        """Send what is deferred, and wait for the answers; the lock is held."""
        if self.deferred is None:
            return
        try:
            super().wait(self.deferred.sent(self.pgconn, to_end=to_end))
        except BaseException:
            if self.pgconn.pipeline_status != PipelineStatus.OFF:
                self.close()
            raise

    # Any: whatever a generator of psycopg's returns.
    def wait(self, gen: PQGen[Any], *arguments: Any, **options: Any) -> Any:
        """Wait for the server, once what was deferred before is sent."""
        self.send_deferred()
        return super().wait(gen, *arguments, **options)

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


def is_together(connection: Connection[Any]) -> bool:
    """Return whether the statements on a connection are sent together at this moment."""
    return isinstance(connection, KeepingConnection) and connection.deferred is not None


def was_closed(connection: Connection[Any]) -> bool:
    """Return whether a connection was closed by this process, and not lost."""
    # None once libpq's own `finish` was called.
    is_there = getattr(connection.pgconn, "pgconn_ptr", None) is not None
    return connection.closed and not (connection.broken and is_there)
