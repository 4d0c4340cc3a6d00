"""Errors of psycopg as errors of the store. `sqlstates` says whose fault each is."""

import re
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from reservation.errors import (
    CommitUnknownError,
    DatabaseUnavailableError,
    ExpectedVersionError,
    LockTimeoutError,
    LogSequenceError,
    MessageIdConflictError,
    MissingObjectError,
    MissingRightError,
    RefusedError,
    SerializationError,
    StatementCanceledError,
    StoreError,
)
from reservation.postgres.sqlstates import (
    Fault,
    fault_of,
    hides_rows,
    may_follow_commit,
    race_constraint,
    violates_log_key,
)

INSTALL_HINT = "run `reservation store install`"
REPAIR_HINT = "run `reservation store repair` as the owner of the store"

# Errors that left nothing behind; a consumer's batch can be run again, with more care.
TO_BE_RETRIED = (
    ExpectedVersionError,
    LockTimeoutError,
    MessageIdConflictError,
    SerializationError,
)

# Our statements and functions name their schema wherever they name something, in every language.
_OUR_SCHEMAS = re.compile(r"\b(message_store|reservation)\b")

# Classes of SQLSTATEs of a failing server, among those that psycopg counts as operational.
_FAILING = ("53", "57", "58")


@dataclass(slots=True)
class Exchange:
    """A statement that was sent.

    Attributes:
        ids: the ids of the messages that it writes; none for a read.
        expects: the streams that must be at an expected version; None if unknown.
        commits: whether the server may commit although its answer is lost.
        commits_within: whether it may also commit before it ends the statement with an error.
    """

    ids: Sequence[uuid.UUID]
    expects: Collection[str] | None
    commits: bool = False
    commits_within: bool = False


def commits_at_once(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return whether a statement on this connection is, or may be, a transaction of its own."""
    status = connection.info.transaction_status
    # Active: another thread or task uses it too, and this statement waits for its turn.
    return connection.autocommit and status in (TransactionStatus.IDLE, TransactionStatus.ACTIVE)


def may_commit_within(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return whether a statement on this connection is a transaction of its own, for certain.

    Only there can a procedure commit.
    """
    info = connection.info
    return (
        connection.autocommit
        and info.transaction_status is TransactionStatus.IDLE
        and info.pipeline_status is PipelineStatus.OFF
    )


@contextmanager
def translated(
    ids: Sequence[uuid.UUID] = (), expects: Collection[str] | None = None
) -> Iterator[Exchange]:
    """Raise the store's own errors for those of psycopg."""
    exchange = Exchange(ids, expects)
    try:
        yield exchange
    except psycopg.Error as error:
        if fault_of(error) is Fault.LOST:
            raise _lost(error, exchange.ids if exchange.commits else ()) from error
        if exchange.commits_within and may_follow_commit(error):
            raise _unknown("The statement ended", error, exchange.ids) from error
        raise _refused(error, exchange.expects) from error


def translation(error: psycopg.Error, expects: Collection[str] | None = None) -> StoreError:
    """Return the store's own error for one of psycopg, as `translated` raises it."""
    try:
        with translated((), expects):
            raise error
    except StoreError as translation:
        return translation


def environmental(error: psycopg.Error) -> StoreError:
    """Return the error for a statement of ours that carries no effects of messages.

    It may be sent together with statements that do; if those are refused, messages are to blame.
    """
    reason = translation(error)
    if isinstance(reason, RefusedError):
        reason = StoreError(f"The database refused a statement of the consumer itself: {reason}")
        reason.__cause__ = error
    return reason


def _lost(error: psycopg.Error, ids: Sequence[uuid.UUID]) -> DatabaseUnavailableError:
    text = _first_line(error)
    if isinstance(error, PoolClosed | PoolTimeout | TooManyRequests):
        return DatabaseUnavailableError(f"The pool gives no connection to the database: {text}")
    if ids:
        return _unknown("The connection to the database was lost", error, ids)
    return DatabaseUnavailableError(f"The connection to the database was lost: {text}")


def _unknown(what: str, error: psycopg.Error, ids: Sequence[uuid.UUID]) -> CommitUnknownError:
    return CommitUnknownError(
        f"{what} before it was known whether the write was committed: {_first_line(error)}. Write "
        f"again with the same ids; what is stored already is not written twice",
        ids,
    )


def _refused(error: psycopg.Error, expects: Collection[str] | None) -> StoreError:
    text = _first_line(error)
    match error:
        case pg.RaiseException() | pg.UniqueViolation():
            return _raised(error, text, expects)
        case pg.LockNotAvailable():
            return LockTimeoutError(f"The database gave up waiting: {text}")
        case pg.QueryCanceled():
            return StatementCanceledError(f"The database canceled a statement: {text}")
        case pg.InsufficientPrivilege() if hides_rows(error):
            return MissingRightError(
                f"The database refuses: {text}; let a superuser give the role BYPASSRLS"
            )
        case pg.InsufficientPrivilege():
            return MissingRightError(
                f"The database refuses: {text}; connect as a role that may, or let the owner "
                f"grant it"
            )
        case pg.InvalidSchemaName() | pg.UndefinedFunction() | pg.UndefinedTable():
            if _OUR_SCHEMAS.search(text):
                return MissingObjectError(f"{text}; {INSTALL_HINT}")
            return StoreError(
                f"The database refused: {text}; look for code in the database that names it, such "
                f"as a trigger on message_store.messages"
            )
        case _ if (error.sqlstate or "").startswith("40"):
            return SerializationError(
                f"The transaction lost a race with another: {text}; run it again from its start"
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
        case psycopg.OperationalError() if (error.sqlstate or "").startswith(_FAILING):
            return DatabaseUnavailableError(f"The database fails: {text}")
    return _plain(error, text)


def _plain(error: psycopg.Error, text: str) -> StoreError:
    if fault_of(error) is not Fault.MESSAGE:
        return StoreError(f"The database refused: {text}")
    if isinstance(error, psycopg.DataError):  # whose text repeats the value
        return RefusedError(f"The database refused a value: {type(error).__name__}")
    return RefusedError(f"The database refused: {text}")


def _raised(error: psycopg.Error, text: str, expects: Collection[str] | None) -> StoreError:
    """Return the error for one that the store's own functions and indexes raise."""
    # Of our two indexes the details hold the key alone, which is no payload.
    key = error.diag.message_detail or text
    if violates_log_key(error):
        return LogSequenceError(
            f"The sequence of global positions is behind the log, so a new message got a position "
            f"that is in use; {REPAIR_HINT}"
        )
    match race_constraint(error):
        case "expected_version":
            return ExpectedVersionError(text)
        # Not seen, because the snapshot was from before.
        case "messages_stream" if expects is None or any(f"({name}, " in key for name in expects):
            return ExpectedVersionError(f"Another transaction wrote to the stream first: {key}")
        case "message_id":
            return MessageIdConflictError(f"{text}; give another message an id of its own")
        case "messages_id" | "messages_stream":
            return SerializationError(
                f"Another transaction wrote what this one cannot see: {key}; run the transaction "
                f"again from its start"
            )
    if text.startswith("Wrong expected version"):  # a store of Message DB's
        return ExpectedVersionError(text)
    return _plain(error, text)


def _first_line(error: psycopg.Error) -> str:
    """Return the server's message alone: details and context may hold values of rows."""
    return error.diag.message_primary or str(error).strip().partition("\n")[0]
