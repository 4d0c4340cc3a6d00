"""The context of a handler's call: its message, and the further messages that it writes.

Nothing is written while a handler runs. What it writes is collected and written with the events
that it returns, so a handler that fails has written nothing.
"""

import dataclasses
import random
import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
)
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection

from reservation.blocks.connected import Connect, connected_by
from reservation.blocks.savepoint import missing
from reservation.errors import (
    HandlerError,
    IdempotenceKeyError,
    ReservationError,
    StoreError,
    StreamNameError,
)
from reservation.messages.message import StoredMessage, follow, further_id, printable
from reservation.messages.metadata import Metadata
from reservation.messages.stream_name import category
from reservation.serialization.fields import is_message
from reservation.store.argument_checks import check_expected, check_stream
from reservation.store.writing.scheduling import ScheduledWrite, check_when
from reservation.store.writing.write import Receiver, Write, stream_to

if TYPE_CHECKING:
    from sqlalchemy import orm

M = TypeVar("M")


def out_of_order(message: StoredMessage, entity_stream: str) -> IdempotenceKeyError:
    """Return the error of a message whose place in the sequence says nothing of its entity's."""
    return IdempotenceKeyError(
        f"Cannot handle {message}: later messages of {printable(entity_stream)} may have been "
        f"handled already, because its stream is in another partition than that entity, or "
        f"the entity did not wait for its dead letter; send it again to a stream whose id begins "
        f"with the entity's, and discard the letter"
    )


def stored_time(message: StoredMessage) -> datetime:
    """Return the time of storing a message, in UTC."""
    time = message.time
    if time.tzinfo is None:
        return datetime.combine(time, time.time(), UTC)  # a third of the time of `replace`
    return time.astimezone(UTC)


@dataclass(frozen=True, slots=True)
class HandlerInputs:
    """The inputs of a handler beside its message's data, kept for a later handling of the same.

    Attributes:
        time: when the message was stored.
        seed: the seed of the random numbers, as hexadecimal digits.
        ids: the ids that the handler asked for, by their names.
    """

    time: datetime
    seed: str
    ids: dict[str, uuid.UUID] = field(default_factory=dict)


class Context:
    """Gives a handler time, random numbers, ids and a connection; takes its further messages.

    In a test of a handler that does not reply ``Context(message)`` is enough. What the handler
    wrote is in ``writes``.

    Attributes:
        message: the stored message that is handled.
        writes: the further messages that the handler wrote, in order.
        scheduled: those that it scheduled, in order.
        noted: the faults of the environment that the handler's blocks met.
    """

    __slots__ = (
        "_connect",
        "_connection",
        "_entity_stream",
        "_gave",
        "_given",
        "_is_connected",
        "_random",
        "_replies_to",
        "_unordered",
        "message",
        "noted",
        "scheduled",
        "writes",
    )

    def __init__(
        self,
        message: StoredMessage,
        *,
        entity_stream: str = "",
        connection: Connection[Any] | None = None,
        connect: Connect | None = None,
        given: HandlerInputs | None = None,
        unordered: bool = False,
        replies_to: Collection[str] = (),
    ) -> None:
        """Prepare for one message.

        Args:
            message: the stored message that is handled.
            entity_stream: the stream that the handler's events go to.
            connection: a connection in the transaction that holds what the handler writes.
            connect: what gives an async handler a connection, such as a pool's ``connection``.
            given: what an earlier handling of the same message was given, to be given again.
            unordered: whether later messages of the entity may have been handled before.
            replies_to: the categories that the component may reply to.
        """
        self.message = message
        self._unordered = unordered
        self._replies_to = replies_to
        self._given = given
        self._random: random.Random | None = None
        self.writes: list[Write] = []
        self.scheduled: Sequence[ScheduledWrite] = ()
        self._entity_stream = entity_stream
        self._connection = connection
        self._connect = connect
        self._is_connected = False
        self._gave = False
        self.noted: list[psycopg.Error] = []

    @property
    def sequence(self) -> int:
        """The global position of the message that is handled.

        Recorded in the events, it shows a later handling of the same message that it has been
        handled. (Source: Eventide's account component.)

        Raises:
            IdempotenceKeyError: the message is not in the partition of its entity, and later ones
                of that may have been handled before, so the sequence says nothing of the order.
        """
        if self._unordered:
            raise out_of_order(self.message, self._entity_stream)
        return self.message.global_position

    @property
    def time(self) -> datetime:
        """The time of storing the handled message, in UTC; the same at every handling.

        For a reserved command that is when it was reserved.
        """
        return self._time() if self._given is None else self._given.time

    @property
    def random(self) -> random.Random:
        """Random numbers that are the same at every handling of the message."""
        if self._random is None:
            self._random = random.Random(int(self.given.seed, 16))
        return self._random

    @property
    def given(self) -> HandlerInputs:
        """The inputs given to the handler, now or at an earlier handling."""
        if self._given is None:
            seed = uuid.uuid5(uuid.UUID(self.message.id), "\n\nrandom").hex
            self._given = HandlerInputs(self._time(), seed)
        return self._given

    @property
    def connection(self) -> Connection[Any]:
        """The connection of the batch's transaction, for tables of the user's own.

        What is done through it commits with the events and the position, or not at all. A statement
        that may fail belongs in ``with context.connection.transaction():``, a savepoint.

        Raises:
            HandlerError: there is none, because the context was made without one, or because the
                handler is declared with `StateBased` or with ``async def``.
        """
        if self._connection is None:
            raise HandlerError(
                f"There is no connection for {self.message}: a handler with StateBased or "
                f"async def has none, and async def has context.connected(); in a test, make the "
                f"context with Context(message, connection=connection)"
            )
        self._gave = True
        return self._connection

    def session(self) -> AbstractContextManager["orm.Session"]:
        """Return a block with a session of SQLAlchemy in the transaction of the batch.

        ``with context.session() as session:``. What is pending is flushed when the block ends, and
        committed with the events. An exception that leaves the block, ``session.rollback()`` and
        ``session.close()`` take back what was done in it. Each block has a session of its own.

        Raises:
            HandlerError: there is no connection, see `connection`, or SQLAlchemy is not installed;
                in the block, the session was committed, or a statement that failed was ignored.
        """
        connection = self.connection
        try:
            from reservation.blocks.sqlalchemy_session import session_on
        except ModuleNotFoundError as error:
            block = "context.session()"
            raise missing(self.message, block, "SQLAlchemy 2", "sqlalchemy") from error
        return session_on(connection, self.message, self.noted)

    def django(self, using: str = "default") -> AbstractContextManager[None]:
        """Return a block in which Django's ORM works in the transaction of the batch.

        ``with context.django():``. It is an atomic block, whose rows are committed with the events.
        An exception that leaves it takes back what was done in it.

        Args:
            using: the alias in ``DATABASES``, of the message store's database.

        Raises:
            HandlerError: there is no connection, see `connection`, or Django is not installed; in
                the block, the alias is of another database, the transaction was committed, a
                statement that failed was ignored, or ``on_commit`` was called.
        """
        connection = self.connection
        try:
            from reservation.blocks.django_connection import django_on
        except ModuleNotFoundError as error:
            raise missing(self.message, "context.django()", "Django 5", "django") from error
        return django_on(connection, self.message, self.noted, using)

    def connected(self) -> AbstractAsyncContextManager[AsyncConnection[Any]]:
        """Return a block with a connection of an async handler's own.

        ``async with context.connected() as connection:``. Its transaction is committed when the
        block ends, before the handler's events, and rolled back by an exception. After a crash the
        handler is called again, so what it commits must be harmless a second time: insert under the
        message's id or `id`, ``ON CONFLICT DO NOTHING``. At most ten blocks of a category are open
        at a time; others wait.

        Raises:
            HandlerError: the handler is not async, or in a test, where the context was made without
                ``connect``; in the block, a statement that failed was ignored, or the connection
                was closed.
            psycopg.OperationalError: at the end of the block, the connection has been lost.
        """
        if self._connect is None:
            raise HandlerError(
                f"There is no connection of its own for {self.message}: context.connected() is for "
                f"handlers with async def, others have context.connection; in a test, make the "
                f"context with Context(message, connect=pool.connection)"
            )
        self._gave = True
        return self._connected(self._connect)

    @asynccontextmanager
    async def _connected(self, connect: Connect) -> AsyncIterator[AsyncConnection[Any]]:
        if self._is_connected:  # calls that each wait for a second one would wait for each other
            raise HandlerError(
                f"The handler of {self.message} is in a block of context.connected() already; use "
                f"the connection of that, or end it first"
            )
        self._is_connected = True
        try:
            async with connected_by(connect, self.message, self.noted) as connection:
                yield connection
        finally:
            self._is_connected = False

    def begin_again(self) -> None:
        """Forget what the handler wrote, before it is called once more."""
        self.noted.clear()
        self.writes.clear()
        self.scheduled, self._random = (), None

    @property
    def gave_connection(self) -> bool:
        """Whether the handler has asked for the connection, or for one of its own."""
        return self._gave

    def follow(self, source: object, type_: type[M], **attributes: Any) -> M:
        """Return a new message that takes its attributes of the same name from ``source``.

        Args:
            source: the message that is followed, an instance of any message class.
            type_: the class of the message to make.
            attributes: what the source does not have, or has with another value.

        Raises:
            TypeError: an attribute is given that the message does not have, or one is not given
                that it needs; or what the class raises that checks its values.
        """
        return follow(source, type_, **attributes)

    def id(self, name: str = "") -> uuid.UUID:
        """Return an id that is the same however often the message is handled.

        Pass it to other systems as their idempotency key, because what is done there may be done
        again.

        Args:
            name: distinguishes uses; a message has an id for each name.
        """
        ids = self.given.ids
        if name not in ids:
            # No id of a stored message is made of a text that begins so.
            ids[name] = uuid.uuid5(uuid.UUID(self.message.id), f"\n{name}")
        return ids[name]

    def write(
        self,
        message: object,
        stream_name: str,
        *,
        expected_version: int | None = None,
        correlated: bool = False,
        at: datetime | None = None,
        after: timedelta | str | None = None,
    ) -> None:
        """Write a further message, to any stream but the entity's own, with the handler's events.

        It is encoded when the handler returns. Its metadata follows the message that is handled,
        and its id depends on nothing but that message and how many were written to the stream
        before, so that it is never written twice.

        With ``at`` or ``after`` the message is scheduled with the handler's events, and written
        when it is due by the server's clock; see `MessageStore.write`. It is in `scheduled`
        then, with the id by which it can be cancelled.

        Args:
            message: an instance of a message class.
            stream_name: the stream to write to.
            expected_version: the position of the stream's last message, -1 if the stream must not
                exist, None if it does not matter. If the stream is elsewhere, nothing of the batch
                is written, and the handler is called again; it fails if the stream is elsewhere
                then too. What is written later can expect none.
            correlated: whether the message carries the name of the entity's stream as its
                ``correlationStreamName``, in the place of what the handled message carries. What
                follows from it carries that too, so a subscription declared with
                ``correlated=True`` takes it. (Source: Eventide's correlation of consumers.)
            at: when to write it, with a time zone; None for now.
            after: how long after `time` to write it: a `timedelta`, or a text such as ``"30m"``;
                None for now.

        Raises:
            HandlerError: the message cannot be written there, or not then.
        """
        metadata = self.message.follow_metadata()
        if correlated and self._entity_stream:
            metadata = dataclasses.replace(metadata, correlation_stream_name=self._entity_stream)
        if at is None and after is None:
            self._collect(message, stream_name, metadata, expected_version)
        else:
            self._schedule(message, stream_name, metadata, expected_version, at, after)

    def send(
        self,
        command: object,
        component: Receiver,
        *,
        expected_version: int | None = None,
        correlated: bool = False,
        at: datetime | None = None,
        after: timedelta | str | None = None,
    ) -> None:
        """Send a command with the handler's events, to the stream that its component reads.

        The rest is as for `write`.

        Args:
            command: an instance of a class that the component handles.
            component: the component, which may be the handler's own.
            expected_version: see `write`.
            correlated: see `write`.
            at: see `write`.
            after: see `write`.

        Raises:
            HandlerError: the component does not handle such commands, the entity's id cannot name
                a stream, or the command cannot be written there, or not then.
        """
        try:
            stream_name = stream_to(command, component, "context")
        except ReservationError as error:
            raise HandlerError(f"The handler of {self.message} cannot send: {error}") from error
        self.write(
            command,
            stream_name,
            expected_version=expected_version,
            correlated=correlated,
            at=at,
            after=after,
        )

    def reply(self, message: object) -> None:
        """Write a message to the stream at which the sender of the handled message waits.

        The stream is in the metadata, as ``replyStreamName``. A reply does not pass it on. Whoever
        sends a command chooses it, so the component declares the categories that it may be of.

        Args:
            message: an instance of a message class.

        Raises:
            HandlerError: the handled message names no such stream, or one of a category that the
                component does not reply to.
        """
        metadata = self.message.follow_metadata()
        if metadata.reply_stream_name is None:
            raise HandlerError(
                f"Cannot reply to {self.message}: its metadata names no reply stream; let the "
                f"sender give one, or check context.message.metadata.reply_stream_name first"
            )
        if category(metadata.reply_stream_name) not in self._replies_to:
            raise HandlerError(
                f"The handler of {self.message} may not reply to "
                f"{printable(metadata.reply_stream_name)}, which the sender has named: declare "
                f"its category with Component(…, replies_to=…), in a test with Context(message, "
                f"replies_to=…), or let the sender name another"
            )
        self._collect(
            message,
            metadata.reply_stream_name,
            dataclasses.replace(metadata, reply_stream_name=None),
            None,
        )

    def _time(self) -> datetime:
        return stored_time(self.message)

    def _collect(
        self, message: object, stream_name: str, metadata: Metadata, expected_version: int | None
    ) -> None:
        self.writes.append(
            Write(
                message,
                stream_name,
                id=self._further_id(message, stream_name, expected_version),
                metadata=metadata,
                expected_version=expected_version,
            )
        )

    def _schedule(
        self,
        message: object,
        stream_name: str,
        metadata: Metadata,
        expected_version: int | None,
        at: datetime | None,
        after: timedelta | str | None,
    ) -> None:
        try:
            due, delay = check_when(at, after)
        except StoreError as error:
            raise HandlerError(f"The handler of {self.message} cannot schedule: {error}") from error
        if expected_version is not None:
            raise HandlerError(
                f"The handler of {self.message} cannot schedule: a scheduled message cannot have "
                f"an expected version; leave expected_version out"
            )
        due = due or self.time + (delay or timedelta(0))
        id_ = self._further_id(message, stream_name, None)
        scheduled = ScheduledWrite(message, stream_name, due, id_, metadata)
        self.scheduled = [*self.scheduled, scheduled]

    def _further_id(
        self, message: object, stream_name: str, expected_version: int | None
    ) -> uuid.UUID:
        """Return the id of a further message, once it is one that can be written there."""
        if not is_message(message):
            raise HandlerError(
                f"The handler of {self.message} wrote a {type(message).__name__}; a message is an "
                f"instance of a message class, such as a dataclass"
            )
        try:
            check_stream(stream_name)
            check_expected(expected_version, stream_name)
        except (StreamNameError, StoreError) as error:
            raise HandlerError(f"The handler of {self.message} cannot write: {error}") from error
        if stream_name == self._entity_stream:
            raise HandlerError(
                f"The handler of {self.message} wrote to {stream_name}, the stream of its own "
                f"entity; return the event instead"
            )
        ordinal = sum(write.stream_name == stream_name for write in self.writes)
        if self.scheduled:
            ordinal += sum(one.stream_name == stream_name for one in self.scheduled)
        return further_id(self.message.id, self._entity_stream, stream_name, ordinal)
