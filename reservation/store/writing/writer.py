"""The methods of a client that write, now or later, for both kinds of clients."""

# ruff: noqa: A002  `id` is the field's word

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar, overload

from reservation.messages.metadata import Metadata
from reservation.store.statements import NO_STREAM, Statement
from reservation.store.writing.position import WrittenPosition
from reservation.store.writing.scheduling import (
    Cancellation,
    cancel_scheduled,
    schedule_write,
)
from reservation.store.writing.sending import in_span
from reservation.store.writing.write import (
    Receiver,
    Write,
    check_later,
    to_component,
    to_one_stream,
)

T = TypeVar("T")


class Writer(ABC):
    """The part of `MessageStore` that writes messages, now or later."""

    _max_bytes: int

    @abstractmethod
    def _run(self, statement: Statement[T]) -> T: ...

    @abstractmethod
    def write_batch(self, writes: Iterable[Write]) -> list[WrittenPosition]:
        """Write messages to one or many streams, all or none."""

    @overload
    def send(
        self,
        command: object,
        component: Receiver,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        expected_version: int | None = None,
    ) -> WrittenPosition: ...
    @overload
    def send(
        self,
        command: object,
        component: Receiver,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        at: datetime,
    ) -> uuid.UUID: ...
    @overload
    def send(
        self,
        command: object,
        component: Receiver,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        after: timedelta | str,
    ) -> uuid.UUID: ...
    def send(
        self,
        command: object,
        component: Receiver,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        expected_version: int | None = None,
        at: datetime | None = None,
        after: timedelta | str | None = None,
    ) -> WrittenPosition | uuid.UUID:
        """Write a command to the stream that its component reads it from, now or later.

        The stream is named by the entity's id: ``store.send(Deposit("d1", "123", 10), account)``
        writes to ``account:command-123``.

        Args:
            command: an instance of a class that the component handles.
            component: the component.
            id: the id of the message; see `Write`.
            metadata: its metadata.
            expected_version: of the stream, before the command; not with a time.
            at: when to write it; see `write`.
            after: how long from now to write it; see `write`.

        Returns:
            The position of the command in the stream, from 0, which also has its
            ``global_position``; with a time the id of the message.

        Raises:
            UnknownTypeError: the component does not handle such commands.
            IdempotenceKeyError: the entity's id cannot name a stream.
            StoreError: the component is none; or as for `write`.
        """
        writes = to_component(command, component, id, metadata, expected_version)
        return self._write(writes, at, after)

    @overload
    def write(
        self,
        message: object | Sequence[object],
        stream_name: str,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        expected_version: int | None = None,
    ) -> WrittenPosition: ...
    @overload
    def write(
        self,
        message: object,
        stream_name: str,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        at: datetime,
    ) -> uuid.UUID: ...
    @overload
    def write(
        self,
        message: object,
        stream_name: str,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        after: timedelta | str,
    ) -> uuid.UUID: ...
    def write(
        self,
        message: object | Sequence[object],
        stream_name: str,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        expected_version: int | None = None,
        at: datetime | None = None,
        after: timedelta | str | None = None,
    ) -> WrittenPosition | uuid.UUID:
        """Write one message, or several at once, to the end of a stream; or one message later.

        With ``at`` or ``after`` any consumer of the store writes the message, once, when it is due
        by the server's clock, and not before. Scheduling the same id and content again is harmless:
        the first time stands, and a message that was cancelled or written is not scheduled again.

        Args:
            message: a message, or a sequence of them.
            stream_name: the stream to write to.
            id: the id of a single message; see `Write`.
            metadata: the metadata of the message, or of each of them.
            expected_version: of the stream, before the first of them; not with a time.
            at: when to write a single message, with a time zone; a time that has passed is now.
            after: how long from now, by the server's clock, to write a single message: a
                `timedelta`, or a text such as ``"500ms"``, ``"30m"`` or ``"2d"``.

        Returns:
            The position in the stream of the last one, from 0, which also has its
            ``global_position``; with a time the id of the message, with which `cancel` cancels it.

        Raises:
            ExpectedVersionError: the stream is not at the expected version; nothing is written.
            MessageIdConflictError: the id is in use for other content.
            CommitUnknownError: the connection was lost before the answer came; write again with
                the ids that the error carries.
            EncodeError: a message does not hold what its class declares, holds what the store
                cannot hold, or is too long.
            StreamNameError: the name is not valid, or is that of a category.
            StoreError: there are two times, or one that cannot be, or a time together with several
                messages or an expected version.
        """
        writes = to_one_stream(message, stream_name, id, metadata, expected_version)
        return self._write(writes, at, after)

    def _write(
        self, writes: list[Write], at: datetime | None, after: timedelta | str | None
    ) -> WrittenPosition | uuid.UUID:
        if at is None and after is None:
            return self.write_batch(writes)[-1]
        with in_span(check_later(writes), "schedule") as sent:
            return self._run(schedule_write(sent, at, after, self._max_bytes))

    def write_initial(
        self,
        message: object,
        stream_name: str,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
    ) -> WrittenPosition:
        """Write the first message of a stream that must not exist yet.

        Args:
            message: an instance of a message class.
            stream_name: the stream to write to.
            id: the id of the message; see `Write`.
            metadata: its metadata.

        Returns:
            Its position in the stream, 0.

        Raises:
            ExpectedVersionError: the stream exists.
            StoreError: as for `write`.
        """
        return self.write(
            message, stream_name, id=id, metadata=metadata, expected_version=NO_STREAM
        )

    def cancel(self, id: uuid.UUID) -> Cancellation:
        """Cancel a message that is to be written later, unless it was written.

        Args:
            id: the id of the message.

        Returns:
            What became of the message.

        Raises:
            StoreError: the id is no UUID, or the database refuses or is away.
        """
        return self._run(cancel_scheduled(id))


class AsyncWriter(ABC):
    """The part of `AsyncMessageStore` that writes messages, now or later."""

    _max_bytes: int

    @abstractmethod
    async def _run(self, statement: Statement[T]) -> T: ...

    @abstractmethod
    async def write_batch(self, writes: Iterable[Write]) -> list[WrittenPosition]:
        """Write messages to one or many streams, all or none."""

    @overload
    async def send(
        self,
        command: object,
        component: Receiver,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        expected_version: int | None = None,
    ) -> WrittenPosition: ...
    @overload
    async def send(
        self,
        command: object,
        component: Receiver,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        at: datetime,
    ) -> uuid.UUID: ...
    @overload
    async def send(
        self,
        command: object,
        component: Receiver,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        after: timedelta | str,
    ) -> uuid.UUID: ...
    async def send(
        self,
        command: object,
        component: Receiver,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        expected_version: int | None = None,
        at: datetime | None = None,
        after: timedelta | str | None = None,
    ) -> WrittenPosition | uuid.UUID:
        """Write a command to the stream of its entity; see `MessageStore.send`."""
        writes = to_component(command, component, id, metadata, expected_version)
        return await self._write(writes, at, after)

    @overload
    async def write(
        self,
        message: object | Sequence[object],
        stream_name: str,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        expected_version: int | None = None,
    ) -> WrittenPosition: ...
    @overload
    async def write(
        self,
        message: object,
        stream_name: str,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        at: datetime,
    ) -> uuid.UUID: ...
    @overload
    async def write(
        self,
        message: object,
        stream_name: str,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        after: timedelta | str,
    ) -> uuid.UUID: ...
    async def write(
        self,
        message: object | Sequence[object],
        stream_name: str,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
        expected_version: int | None = None,
        at: datetime | None = None,
        after: timedelta | str | None = None,
    ) -> WrittenPosition | uuid.UUID:
        """Write one message, or several at once, to a stream; see `MessageStore.write`."""
        writes = to_one_stream(message, stream_name, id, metadata, expected_version)
        return await self._write(writes, at, after)

    async def _write(
        self, writes: list[Write], at: datetime | None, after: timedelta | str | None
    ) -> WrittenPosition | uuid.UUID:
        if at is None and after is None:
            return (await self.write_batch(writes))[-1]
        with in_span(check_later(writes), "schedule") as sent:
            return await self._run(schedule_write(sent, at, after, self._max_bytes))

    async def write_initial(
        self,
        message: object,
        stream_name: str,
        *,
        id: uuid.UUID | None = None,
        metadata: Metadata | None = None,
    ) -> WrittenPosition:
        """Write the first message of a stream; see `MessageStore.write_initial`."""
        return await self.write(
            message, stream_name, id=id, metadata=metadata, expected_version=NO_STREAM
        )

    async def cancel(self, id: uuid.UUID) -> Cancellation:
        """Cancel a message that is to be written later; see `MessageStore.cancel`."""
        return await self._run(cancel_scheduled(id))
