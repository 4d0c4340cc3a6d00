"""What psycopg raises, told in the words of the store."""

import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from reservation.errors import (
    CommitUnknownError,
    DatabaseUnavailableError,
    ExpectedVersionError,
    LockTimeoutError,
    MessageIdConflictError,
    SchemaError,
    SerializationError,
    StoreError,
)

INSTALL_HINT = "run `reservation store install`"

# Errors that left nothing behind; a consumer's batch can be run again, with more care.
RUN_AGAIN = (
    ExpectedVersionError,
    LockTimeoutError,
    MessageIdConflictError,
    SerializationError,
)

_LOST = (psycopg.OperationalError, psycopg.InterfaceError)

# Classes of SQLSTATEs that psycopg counts as operational, and that no repetition mends: a limit of
# the program is exceeded, an object is not in the state that it takes.
_FOR_EVER = ("54", "55")


@dataclass(slots=True)
class Exchange:
    """A statement on its way.

    Attributes:
        commits: whether the server may commit although the answer never comes.
    """

    commits: bool = False


def commits_at_once(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Tell whether a statement on this connection is, or may be, a transaction of its own."""
    status = connection.info.transaction_status
    # Active: another thread or task uses it too, and this statement waits for its turn.
    return connection.autocommit and status in (TransactionStatus.IDLE, TransactionStatus.ACTIVE)


@contextmanager
def translated(
    ids: Sequence[uuid.UUID] = (), expects: Collection[str] | None = None
) -> Iterator[Exchange]:
    """Raise the store's own errors for those of psycopg.

    Args:
        ids: of the messages that are being written; none if nothing is.
        expects: the streams that have to be at an expected version; None if that is not known.

    Raises:
        ExpectedVersionError: a stream was not at the expected version, or the race for its next
            position was lost.
        MessageIdConflictError: a message id is in use for other content.
        LockTimeoutError: a lock was not to be had in the time that was set.
        SchemaError: a schema, table or function is not there.
        SerializationError: the transaction lost against another.
        DatabaseUnavailableError: the connection was lost, or the server can not go on.
        CommitUnknownError: it was lost when the messages may have been committed.
        StoreError: the server refused the values.
    """
    exchange = Exchange()
    try:
        yield exchange
    except psycopg.Error as error:
        if _is_lost(error):
            raise _lost(error, ids if exchange.commits else ()) from error
        raise _refused(error, expects) from error


def _is_lost(error: psycopg.Error) -> bool:
    """Tell a lost connection from a server that is there and refuses, or can not go on."""
    if error.diag.severity_nonlocalized in ("FATAL", "PANIC"):
        return True
    if error.sqlstate is None:
        return isinstance(error, _LOST) and not isinstance(error, pg.PipelineAborted)
    return error.sqlstate.startswith(("08", "57P", "40003"))


def _lost(error: psycopg.Error, ids: Sequence[uuid.UUID]) -> DatabaseUnavailableError:
    text = _first_line(error)
    if isinstance(error, PoolClosed | PoolTimeout | TooManyRequests):
        return DatabaseUnavailableError(f"The pool gives no connection to the database: {text}")
    if ids:
        return CommitUnknownError(
            f"The connection to the database was lost before it told whether the write was "
            f"committed: {text}. Write again with the same ids; what is stored already is not "
            f"written twice",
            ids,
        )
    return DatabaseUnavailableError(f"The connection to the database was lost: {text}")


def _refused(error: psycopg.Error, expects: Collection[str] | None) -> StoreError:
    text = _first_line(error)
    match error:
        case pg.RaiseException() | pg.UniqueViolation():
            return _raised(error, text, expects)
        case pg.LockNotAvailable() | pg.QueryCanceled():
            return LockTimeoutError(f"The database gave up waiting: {text}")
        case pg.InsufficientPrivilege():
            return StoreError(
                f"The database refuses: {text}; connect as a role that may, or let the owner "
                f"grant it"
            )
        case pg.InvalidSchemaName() | pg.UndefinedFunction() | pg.UndefinedTable():
            return SchemaError(f"{text}; {INSTALL_HINT}")
        case pg.DeadlockDetected() | pg.SerializationFailure():
            return SerializationError(
                f"The transaction lost against another: {text}; run it again from its start"
            )
        case pg.ReadOnlySqlTransaction():
            return StoreError(
                f"The database refuses: {text}; write in a transaction that may, on a server "
                f"that is no standby"
            )
        case pg.InFailedSqlTransaction() | pg.PipelineAborted():
            return StoreError(
                f"An earlier statement on this connection failed: {text}; roll back, and run the "
                f"transaction again from its start"
            )
        case psycopg.DataError():  # whose text repeats the value
            return StoreError(f"The database refused a value: {type(error).__name__}")
        case psycopg.OperationalError() if not (error.sqlstate or "").startswith(_FOR_EVER):
            return DatabaseUnavailableError(f"The database fails: {text}")
    return StoreError(f"The database refused: {text}")


def _raised(error: psycopg.Error, text: str, expects: Collection[str] | None) -> StoreError:
    """Tell the errors that the store's own functions and indexes raise."""
    # Of our two indexes the details hold the key alone, which is no payload.
    key = error.diag.message_detail or text
    match error.diag.constraint_name:
        case "expected_version":
            return ExpectedVersionError(text)
        # Not seen, because the snapshot was from before.
        case "messages_stream" if expects is None or any(f"({name}, " in key for name in expects):
            return ExpectedVersionError(f"Another transaction wrote to the stream first: {key}")
        case "message_id":
            return MessageIdConflictError(f"{text}; give another message an id of its own")
        case "messages_id" | "messages_stream":
            return SerializationError(
                f"Another transaction wrote what this one can not see: {key}; run the transaction "
                f"again from its start"
            )
    if text.startswith("Wrong expected version"):  # a store of Message DB's
        return ExpectedVersionError(text)
    return StoreError(f"The database refused: {text}")


def _first_line(error: psycopg.Error) -> str:
    """Return the server's message alone: details and context may hold values of rows."""
    return error.diag.message_primary or str(error).strip().partition("\n")[0]
