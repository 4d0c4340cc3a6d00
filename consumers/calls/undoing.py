"""A handler's context from which what it did through the connection can be taken back.

The savepoint is made when the handler asks for the connection for the first time. So a handler that
does not use it costs no statement, whether it fails or not.
"""

from typing import Any

from psycopg import Connection

from consumers.calls.lending import LendingContext
from reservation.postgres.error_translation import translated


class UndoableContext(LendingContext):
    """The context of a handler whose message may be tried again later."""

    __slots__ = ("_saved",)

    # Any: connections differ in what their rows are.
    @property
    def connection(self) -> Connection[Any]:
        """See `Context.connection`; what is done through it can be taken back."""
        connection = super().connection
        if not self.is_saved:
            with translated():
                connection.execute("SAVEPOINT reservation_handler")
            self._saved = True
        return connection

    @property
    def is_saved(self) -> bool:
        """Whether the handler has asked for the connection."""
        return hasattr(self, "_saved")

    def keep(self) -> None:
        """Keep what the handler did."""
        if self.is_saved:
            with translated():
                super().connection.execute("RELEASE SAVEPOINT reservation_handler")

    def undo(self) -> None:
        """Take back what the handler did, also where one of its statements failed."""
        if self.is_saved:
            with translated():
                super().connection.execute("ROLLBACK TO SAVEPOINT reservation_handler")
                super().connection.execute("RELEASE SAVEPOINT reservation_handler")
