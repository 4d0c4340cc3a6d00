"""What the handlers of a read model get: the events as they are recorded, and the connection."""

from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from psycopg import Connection

from reservation.context import Context, stored_time
from reservation.messages.message import StoredMessage

if TYPE_CHECKING:
    from sqlalchemy import orm

T = TypeVar("T")


class Recorded(msgspec.Struct, Generic[T], frozen=True):
    """An event, and the stored message that records it.

    Attributes:
        event: the event.
        message: the stored message.
    """

    event: T
    message: StoredMessage

    @property
    def global_position(self) -> int:
        """The position of the event in the store."""
        return self.message.global_position

    @property
    def time(self) -> datetime:
        """The time at which the event was stored, in UTC."""
        return stored_time(self.message)


class ReadContext:
    """Gives a handler of a read model the connection, and the stored message.

    It writes no messages, and has no random numbers or ids: the rows depend on the events alone. In
    a test of a handler make it with ``ReadContext(Context(message, connection=connection))``.
    """

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        """Prepare for one call.

        Args:
            context: a context of the message, or of the last of several, with the connection.
        """
        self._context = context

    @property
    def connection(self) -> Connection[Any]:
        """The connection of the batch's transaction, whose search path is the version's schema.

        What is done through it commits with the consumer's position, or not at all. A statement
        with parameters is sent together with later ones, unless its answer is read. If it fails,
        the handlers of the batch are called again, and each statement is sent at once. A statement
        in ``with context.connection.transaction():`` is always sent at once, to catch its error.
        """
        return self._context.connection

    def session(self) -> AbstractContextManager["orm.Session"]:
        """Return a block with a session of SQLAlchemy on the connection; see `Context.session`."""
        return self._context.session()

    def django(self, using: str = "default") -> AbstractContextManager[None]:
        """Return a block in which Django's ORM uses the connection; see `Context.django`.

        Args:
            using: the alias in ``DATABASES``, of the message store's database.
        """
        return self._context.django(using)

    @property
    def message(self) -> StoredMessage:
        """The stored message that is handled; the last one where several are handled at once."""
        return self._context.message

    @property
    def time(self) -> datetime:
        """The time of storing that message, in UTC."""
        return self._context.time
