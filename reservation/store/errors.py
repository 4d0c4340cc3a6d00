"""What psycopg raises, told in the words of the store."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg

from reservation.errors import (
    DatabaseUnavailableError,
    ExpectedVersionError,
    LockTimeoutError,
    MessageIdConflictError,
    SchemaError,
    StoreError,
)

INSTALL_HINT = "run `reservation store install`"

# Errors that left nothing behind; a consumer's batch can be run again, with more care.
RUN_AGAIN = (
    ExpectedVersionError,
    LockTimeoutError,
    MessageIdConflictError,
    pg.DeadlockDetected,
    pg.SerializationFailure,
)


@contextmanager
def translated() -> Iterator[None]:
    """Raise the store's own errors for those of psycopg.

    Raises:
        ExpectedVersionError: a stream was not at the expected version, or the race for its next
            position was lost.
        MessageIdConflictError: a message id is in use for other content.
        LockTimeoutError: a lock was not to be had in the time that was set.
        SchemaError: a schema, table or function is not there.
        DatabaseUnavailableError: the connection was lost, or the server can not go on.
        StoreError: the server refused the values.
    """
    try:
        yield
    except (pg.RaiseException, pg.UniqueViolation) as error:
        match error.diag.constraint_name:
            case "expected_version" | "messages_stream":
                raise ExpectedVersionError(_first_line(error)) from error
            case "messages_id":
                raise MessageIdConflictError(
                    f"{_first_line(error)}; give another message an id of its own"
                ) from error
        if _first_line(error).startswith("Wrong expected version"):  # a store of Message DB's
            raise ExpectedVersionError(_first_line(error)) from error
        raise StoreError(f"The database refused: {_first_line(error)}") from error
    except (pg.LockNotAvailable, pg.QueryCanceled) as error:
        raise LockTimeoutError(f"The database gave up waiting: {_first_line(error)}") from error
    except pg.InsufficientPrivilege as error:
        raise StoreError(
            f"The database refuses: {_first_line(error)}; connect as a role that may, or let "
            f"the owner grant it"
        ) from error
    except (pg.InvalidSchemaName, pg.UndefinedFunction, pg.UndefinedTable) as error:
        raise SchemaError(f"{_first_line(error)}; {INSTALL_HINT}") from error
    except (pg.DeadlockDetected, pg.SerializationFailure):
        raise
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        what = (
            "The connection to the database was lost" if _is_lost(error) else "The database fails"
        )
        raise DatabaseUnavailableError(f"{what}: {_first_line(error)}") from error
    except psycopg.DataError as error:  # whose text repeats the value
        raise StoreError(f"The database refused a value: {type(error).__name__}") from error
    except psycopg.Error as error:
        raise StoreError(f"The database refused: {_first_line(error)}") from error


def _is_lost(error: psycopg.Error) -> bool:
    """Tell a lost connection from a server that is there and can not go on: a full disk, say."""
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))


def _first_line(error: psycopg.Error) -> str:
    """Return the server's message alone: details and context may hold values of rows."""
    return error.diag.message_primary or str(error).strip().partition("\n")[0]
