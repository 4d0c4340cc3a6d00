"""Preconditions of a store for a consumer's writes, and repairs of its sequence.

Each new connection is checked. A missing right is found before a batch fails because of it, and the
error names it as the consumer's. A sequence behind the log is found before a write takes a position
that happens to be free and that consumers may have passed.
"""

from dataclasses import dataclass
from typing import Any

from psycopg import Connection, sql

from reservation.errors import (
    DatabaseUnavailableError,
    LogSequenceError,
    MissingObjectError,
    MissingRightError,
    SchemaError,
    StoreError,
)
from reservation.postgres.error_translation import INSTALL_HINT, REPAIR_HINT, translated
from reservation.postgres.queries import load_queries
from reservation.postgres.sqlstates import hides_rows
from reservation.store.schema.install import check_installed

_QUERIES = load_queries("reservation.store.schema", "preconditions.sql")


@dataclass(frozen=True, slots=True)
class LogSequence:
    """The sequence of global positions.

    Attributes:
        name: its schema and its name.
        next: the position of the next message; None if the role may not read it.
        last: the last position in the log; 0 if the log is empty.
    """

    name: tuple[str, str]
    next: int | None
    last: int

    @property
    def is_behind(self) -> bool:
        """Whether the next message would get a position that is, or may be, in use."""
        return self.next is not None and self.next <= self.last


def check_preconditions(connection: Connection[Any]) -> None:
    """Make sure that a consumer can work on a store."""
    try:
        check_installed(connection)
        check_rights(connection)
        check_sequence(connection)
    except MissingRightError as error:
        raise explained(error, connection) from error


def explained(error: StoreError, connection: Connection[Any]) -> StoreError:
    """Return an error that says what a consumer lacks, if the server's error does not.

    For a role that may not insert into the log, which is taken for a sender, the server names the
    right of a sender.
    """
    if not isinstance(error, MissingRightError | LogSequenceError):
        return error
    if hides_rows(error.__cause__):
        return _bypassing(error, connection)
    try:
        check_rights(connection)
        check_sequence(connection)
    except StoreError as named:
        if hides_rows(named.__cause__):
            return _bypassing(named, connection)
        return error if isinstance(named, DatabaseUnavailableError) else named
    if isinstance(error, LogSequenceError):
        return error
    user = connection.info.user
    return MissingRightError(
        f"The role {user} of the consumer lacks a right. {error}: `reservation store grants "
        f"consumer {user}` grants all that it needs"
    )


def _bypassing(error: StoreError, connection: Connection[Any]) -> StoreError:
    """Name the role that policies hide rows from; no right on a table helps it."""
    user = connection.info.user
    return MissingRightError(
        f"The role {user} of the consumer must see every row. {error}: `ALTER ROLE {user} "
        f"BYPASSRLS`"
    )


def check_sequence(connection: Connection[Any]) -> None:
    """Make sure that the next message gets a global position of its own."""
    sequence = read_sequence(connection)
    if sequence is not None and sequence.is_behind:
        raise LogSequenceError(
            f"The sequence {'.'.join(sequence.name)} is behind the log: the next message would get "
            f"a global position up to the log's last, {sequence.last}; {REPAIR_HINT}"
        )


def check_rights(connection: Connection[Any]) -> None:
    """Make sure that the role has the rights that every consumer needs."""
    with translated():
        role, absent, missing = connection.execute(_QUERIES["rights"]).fetchall()[0]
    if absent:
        raise MissingObjectError(
            f"The database {connection.info.dbname!r} lacks {', '.join(absent)}; {INSTALL_HINT}"
        )
    if missing:
        raise MissingRightError(
            f"The role {role} of the consumer lacks {', '.join(missing)}; run `reservation store "
            f"grants consumer {role}` as the owner of the store, or connect as another role"
        )


def read_sequence(connection: Connection[Any]) -> LogSequence | None:
    """Return the sequence of global positions; None if the log takes them from elsewhere."""
    with translated():
        rows = connection.execute(_QUERIES["log_sequence"]).fetchall()
        if not rows:
            return None
        schema, name, given, readable, last = rows[0]
        following = None if given is None else given + 1
        if given is None and readable:
            query = sql.SQL(_QUERIES["next_value"].decode()).format(
                sequence=sql.Identifier(schema, name)
            )
            value, is_called = connection.execute(query).fetchall()[0]
            following = value + 1 if is_called else value
    return LogSequence((schema, name), following, last or 0)


def repair_sequence(connection: Connection[Any]) -> LogSequence:
    """Set the sequence of global positions after the log's last message, if it is behind.

    Writers are kept off meanwhile, so none takes a position in between.
    """
    with translated(), connection.transaction():
        connection.execute(_QUERIES["keep_writers_off"])
        sequence = read_sequence(connection)
        if sequence is None:
            raise SchemaError(
                "The table message_store.messages has no sequence for global_position; create it "
                "with the scripts of Message DB, or install the store into another database"
            )
        if sequence.is_behind:
            name = sql.Identifier(*sequence.name).as_string(connection)
            connection.execute("SELECT setval(%s, %s)", [name, sequence.last])
    return sequence
