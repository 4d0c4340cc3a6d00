"""Calling a handler: what it returns are events, and what it leaves behind is looked at.

A handler may use the connection of the batch. An error of the database that passes is told from its
own mistakes here, and it must leave the transaction as it found it, open and sound.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from psycopg import Connection
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from reservation.errors import (
    DatabaseUnavailableError,
    HandlerError,
    MessageError,
    SerializationError,
    told,
)
from reservation.message import StoredMessage

# What the next attempt may not meet. A lock is waited for a second at most: see the settings of a
# session.
_PASSING = (pg.DeadlockDetected, pg.LockNotAvailable, pg.SerializationFailure)


def call(
    connection: Connection[Any], message: StoredMessage, handler: Callable[[], object]
) -> list[object]:
    """Return the events that the handler of a message returns.

    Args:
        connection: in the transaction of the batch.
        message: the message that is handled.
        handler: calls the handler.

    Raises:
        HandlerError: the handler raised, or returned what is no event, or left the transaction
            failed or ended.
        DatabaseUnavailableError: the connection was lost meanwhile.
        SerializationError: the handler lost against another transaction; run the batch again.
    """
    try:
        events = list(_events(handler(), message))
    except (Exception, SystemExit) as error:
        problem = _problem(connection)
        if connection.broken:
            raise _lost(message) from error
        if isinstance(error, MessageError):
            raise
        if _passes(error):
            raise SerializationError(
                f"The handler of {message} lost against another transaction: {told(error)}"
            ) from error
        if problem is not None and problem is not _FAILED:
            raise HandlerError(f"The handler of {message} {problem}") from error
        raise HandlerError(f"The handler of {message} raised {told(error)}") from error
    if connection.pgconn.transaction_status == TransactionStatus.INTRANS:  # as it should be
        return events
    problem = _problem(connection)
    if connection.broken:
        raise _lost(message)
    if problem is not None:
        raise HandlerError(f"The handler of {message} {problem}")
    return events


_FAILED = (
    "went on after a statement that failed, so the transaction can not be committed; execute what "
    "may fail in `with context.connection.transaction():`"
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
    if status is TransactionStatus.ACTIVE:  # which could not even be rolled back
        connection.close()
    return _PROBLEMS.get(status)


def _lost(message: StoredMessage) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(
        f"The connection to the database was lost while {message} was handled"
    )


def _passes(error: BaseException) -> bool:
    """Tell whether an exception, or what it is the consequence of, is an error that passes."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (*_PASSING, SerializationError)):
            return True
        cause = cause.__cause__
    return False


def _events(result: object, message: StoredMessage) -> Iterator[object]:
    """Give the events that a handler returned: none, one, or several."""
    if result is None:
        return
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        yield result
        return
    if not isinstance(result, list | tuple | Iterator):
        raise HandlerError(
            f"The handler of {message} returned a {type(result).__name__}; a handler returns an "
            f"event, several or None"
        )
    for event in result:
        yield from _events(event, message)
