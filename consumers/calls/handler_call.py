"""Calling a handler: it returns events, and must leave the transaction as it found it.

Anything that a handler raises, an `Exception` or not, is a fault of its message, except in two
cases. If the connection of the batch was lost, nothing could be committed. If a statement on it
lost a race with another transaction, and the transaction of the batch failed, the batch is run
again. A race that was lost in a savepoint, and rolled back with it, is a fault of the message: the
transaction is sound, and the exception may be of any connection. Only of the statements of an ORM
is it known, because `Context.session` and `Context.django` note the races that these lose.

A handler may use that connection, and must leave the transaction as it found it, open and sound. A
connection that it leaves otherwise is closed, if the transaction cannot be rolled back.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, NoReturn

import psycopg
import structlog
from psycopg import Connection
from psycopg.pq import PipelineStatus, TransactionStatus

from consumers.failures.failure import HandlerRaisedError
from reservation.effects.faults import handler_raised, is_interrupt
from reservation.errors import (
    DatabaseUnavailableError,
    HandlerError,
    MessageError,
    SerializationError,
)
from reservation.handlers.reject import Reject
from reservation.handlers.retry import RetryLater
from reservation.messages.message import StoredMessage
from reservation.postgres.exchange.keeping_connection import was_closed
from reservation.postgres.sqlstates import errors_in, races_in
from reservation.raised import describe


def call(
    connection: Connection[Any],
    message: StoredMessage,
    handler: Callable[[], list[object]],
    noted: Collection[psycopg.Error] = (),
) -> list[object]:
    """Return the events that the handler of a message returns.

    It is called in a copy of the context variables, so what it binds there is gone with the call.
    Its blocks may have noted races that they lost on the connection, and took back.
    """
    copies = _copies
    try:
        events = copy_context().run(handler)
    except BaseException as error:  # a handler can raise anything
        if _copies != copies:
            _end_fork(error)
        _end_without_descriptor(connection, [message])
        if is_interrupt(error):
            raise
        problem = _problem(connection)
        if connection.broken and not was_closed(connection):
            raise _lost(message) from error
        if isinstance(error, MessageError):
            raise
        races = races_in(error)
        if races and (problem is _FAILED or is_noted(error, noted)):
            raise SerializationError(
                f"The handler of {message} lost a race with another transaction: {describe(error)}"
            ) from error
        rejects = isinstance(error, Reject)
        if problem is not None and (rejects or problem is not _FAILED):
            raise HandlerError(f"The handler of {message} {problem}") from error
        if rejects:
            raise
        raise raised(message, error) from error
    if _copies != copies:
        _end_fork(None)
    pgconn, sound = connection.pgconn, TransactionStatus.INTRANS
    # As it should be.
    if pgconn.transaction_status == sound and pgconn.pipeline_status == PipelineStatus.OFF:
        if not _looks_open(connection):
            _end_without_descriptor(connection, [message])
        return events
    problem = _problem(connection)
    if connection.broken and not was_closed(connection):
        raise _lost(message)
    if problem is not None:
        raise HandlerError(f"The handler of {message} {problem}")
    return events


def call_without_connection(
    message: StoredMessage, handler: Callable[[], list[object]]
) -> list[object]:
    """Return the events that a handler returns that has no connection to leave as it was."""
    copies = _copies
    try:
        events = copy_context().run(handler)
    except BaseException as error:  # a handler can raise anything
        if _copies != copies:
            _end_fork(error)
        if is_interrupt(error) or isinstance(error, MessageError | Reject):
            raise
        raise raised(message, error) from error
    if _copies != copies:
        _end_fork(None)
    return events


async def await_call(
    message: StoredMessage,
    handler: Callable[[], Awaitable[list[object]]],
    is_cancelled: Callable[[], bool],
) -> list[object]:
    """Return the events that the async handler of a message returns.

    It has no connection, so there is nothing to leave as it was. Other handlers run meanwhile.
    """
    copies = _copies
    try:
        events = await handler()
    except BaseException as error:  # a handler can raise anything
        if _copies != copies:
            _end_fork(error)
        if is_cancelled():
            raise asyncio.CancelledError from error
        if is_interrupt(error) or isinstance(error, MessageError | Reject):
            raise
        raise raised(message, error) from error
    if _copies != copies:
        _end_fork(None)
    return events


def _count_copy() -> None:
    global _copies
    _copies += 1


# How many forks lie between this process and the first; cheaper to compare than its id.
_copies = 0
os.register_at_fork(after_in_child=_count_copy)


@contextmanager
def guarded(connection: Connection[Any], messages: Sequence[StoredMessage]) -> Iterator[None]:
    """Run a block that calls code of a component, and end a process that must not go on after it.

    That is a fork of the process that entered it, or a process without the descriptor of its
    connection.
    """
    copies = _copies
    _files[id(connection)] = _file(connection.pgconn.socket)
    try:
        yield
    except BaseException as error:
        if _copies != copies:
            _end_fork(error)
        _end_without_descriptor(connection, messages)
        raise
    else:
        if _copies != copies:
            _end_fork(None)
        _end_without_descriptor(connection, messages)
    finally:
        del _files[id(connection)]


@contextmanager
def unforked() -> Iterator[None]:
    """Run a block that calls code of a component outside a transaction; a fork of it is ended."""
    copies = _copies
    try:
        yield
    except BaseException as error:
        if _copies != copies:
            _end_fork(error)
        raise
    if _copies != copies:
        _end_fork(None)


def _end_fork(error: BaseException | None) -> NoReturn:
    """End a process that a handler forked, and that came back instead of ending.

    It would be a second consumer on the same connection. It ends without sending anything to the
    server, because the session belongs to the process that goes on.
    """
    if isinstance(error, SystemExit):  # as it is meant to end
        os._exit(error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None))
    structlog.get_logger().warning("fork_ended", error=None if error is None else describe(error))
    os._exit(0 if error is None else 1)


_FAILED = (
    "went on after a statement that failed, so the transaction cannot be committed; execute what "
    "may fail in `with context.connection.transaction():`"
)
_IN_PIPELINE = (
    "left the connection of its batch in a pipeline; leave pipeline mode before it returns"
)
_PROBLEMS = {
    TransactionStatus.INERROR: _FAILED,
    TransactionStatus.IDLE: "ended the transaction of its batch; leave COMMIT and ROLLBACK to the "
    "consumer, and take back a part with `with context.connection.transaction():`",
    TransactionStatus.ACTIVE: "left a statement unfinished on the connection; read what stream() "
    "and copy() give to the end",
    TransactionStatus.UNKNOWN: "closed the connection of its batch; leave that to the consumer",
}


def _problem(connection: Connection[Any]) -> str | None:
    """Return what is wrong with the transaction that a handler left, if anything is."""
    status = connection.info.transaction_status
    in_pipeline = connection.pgconn.pipeline_status != PipelineStatus.OFF
    if status is TransactionStatus.ACTIVE or in_pipeline:
        # It could not even be rolled back.
        connection.close()
    if connection.closed:
        # What reads an answer holds the lock, for ever if it is left so.
        connection.lock = threading.Lock()
    return _IN_PIPELINE if in_pipeline else _PROBLEMS.get(status)


_OPEN = (TransactionStatus.ACTIVE, TransactionStatus.INTRANS, TransactionStatus.INERROR)


def _end_without_descriptor(connection: Connection[Any], messages: Sequence[StoredMessage]) -> None:
    """End the process if the file descriptor of its connection was closed.

    The next file that is opened gets the same number, and what is meant for the server would be
    written to it.
    """
    if connection.pgconn.transaction_status not in _OPEN:
        return
    if not _has_descriptor(connection):
        structlog.get_logger().error("descriptors_closed", messages=list(map(str, messages[:5])))
        os._exit(1)


# By the id of a connection, the file of its descriptor before the code of a component ran.
_files: dict[int, tuple[int, int] | None] = {}


def _file(number: int) -> tuple[int, int] | None:
    """Return the identity of the file of a descriptor; None if it is closed."""
    try:
        file = os.fstat(number)
    except OSError:
        return None
    return file.st_dev, file.st_ino


def _looks_open(connection: Connection[Any]) -> bool:
    """Return whether a descriptor may be that of a connection, in a fifth of a microsecond.

    A socket of libpq is non-blocking; what a handler opens is blocking by default. The other case
    is found at the end of the batch, because asking for the file takes five times as long.
    """
    try:
        return not os.get_blocking(connection.pgconn.socket)
    except OSError:
        return False


def _has_descriptor(connection: Connection[Any]) -> bool:
    """Return whether the descriptor of a connection still stands for the same file."""
    file = _file(connection.pgconn.socket)
    return file is not None and file == _files.get(id(connection), file)


def raised(message: StoredMessage, error: BaseException) -> HandlerRaisedError:
    """Return the error for what a handler raised."""
    return HandlerRaisedError(handler_raised(message, error), message)


def _lost(message: StoredMessage) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(
        f"The connection to the database was lost while {message} was handled"
    )


def is_noted(error: BaseException, noted: Collection[psycopg.Error]) -> bool:
    """Return whether what a handler raised comes from an error that its blocks have noted.

    What becomes of a message that it rejects or puts off is its own decision.
    """
    if not noted or isinstance(error, Reject | RetryLater):
        return False
    return any(one in noted for one in errors_in(error))
