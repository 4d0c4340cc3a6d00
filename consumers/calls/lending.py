"""A handler's context that lends it the connection of the batch as it is, for one call.

What the handler sets on the connection object, such as its row factory or adapters, is taken back
after the call. What it does in the database is its message's, see `handler_call`.
"""

from typing import Any

from psycopg import Connection
from psycopg.adapt import AdaptersMap

from reservation.context import Context

_ATTRIBUTES = (
    "row_factory",
    "cursor_factory",
    "server_cursor_factory",
    "prepare_threshold",
    "prepared_max",
    "_num_transactions",  # a handler may leave blocks open, which end with its savepoint
)
_LISTS = ("_notice_handlers", "_notify_handlers")


class LendingContext(Context):
    """The context of a handler that may use the connection."""

    __slots__ = ("_before",)

    # Any: connections differ in what their rows are.
    @property
    def connection(self) -> Connection[Any]:
        """See `Context.connection`; what is set on it is gone after the call."""
        first = not self.gave_connection
        connection = super().connection
        if first:
            self._before = _state(connection)
            connection._adapters = AdaptersMap(connection.adapters)
        return connection

    def restore_connection(self) -> None:
        """Set the connection as it was before the call."""
        if self.gave_connection:
            _restore(super().connection, self._before)


class ConnectionBusyError(Exception):
    """A handler asked for the connection while the server works on it."""


class BusyContext(Context):
    """The context of a handler that is called while the server works on the connection."""

    __slots__ = ("_asked",)

    # Any: as above.
    @property
    def connection(self) -> Connection[Any]:
        """See `Context.connection`; what the handler does is discarded, and it is called again."""
        self._asked = True
        raise ConnectionBusyError

    def check(self) -> None:
        """Raise an error if the handler has asked for the connection, whatever it did then."""
        if hasattr(self, "_asked"):
            raise ConnectionBusyError


# Any: the attributes have types of their own.
def _state(connection: Connection[Any]) -> dict[str, Any]:
    attributes = {name: getattr(connection, name) for name in _ATTRIBUTES}
    lists = {name: list(getattr(connection, name)) for name in _LISTS}
    return attributes | lists | {"_adapters": connection.adapters}


def _restore(connection: Connection[Any], before: dict[str, Any]) -> None:
    for name, value in before.items():
        setattr(connection, name, value)
