"""The savepoint of a block in which an ORM uses the connection of the batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
from psycopg import Connection, sql
from psycopg.pq import TransactionStatus

from reservation.errors import HandlerError
from reservation.messages.message import StoredMessage
from reservation.postgres.sqlstates import races_in

_NUMBERS = count(1)


class Savepoint:
    """The savepoint of one block.

    Attributes:
        connection: the connection that the block uses.
        message: the message that is handled.
        noted: the lost races of the handler's blocks.
        is_over: whether the block has ended, so that nothing is rolled back to its beginning.
    """

    def __init__(
        self, connection: Connection[Any], message: StoredMessage, noted: list[psycopg.Error]
    ) -> None:
        self.connection = connection
        self.message = message
        self.noted = noted
        self.is_over = False
        self.name = f"reservation_block_{next(_NUMBERS)}"

    def note(self, error: BaseException) -> None:
        """Note the races in an error that a statement on the connection has raised.

        An ORM may take them back with a savepoint of its own, which leaves no other trace.
        """
        self.noted += races_in(error)

    def roll_back(self) -> None:
        """Take back what was done since the beginning of the block."""
        if not (self.is_over or self.connection.closed):
            name = sql.Identifier(self.name)
            self.connection.execute(sql.SQL("ROLLBACK TO SAVEPOINT {}").format(name))


@contextmanager
def savepoint(
    connection: Connection[Any], message: StoredMessage, noted: list[psycopg.Error], nested: str
) -> Iterator[Savepoint]:
    """Run a block in a savepoint, to which an exception rolls back.

    It fails if it goes on after a statement that failed; ``nested`` says how to execute such ones.
    """
    block = Savepoint(connection, message, noted)
    if connection.info.transaction_status is TransactionStatus.IDLE and not connection.autocommit:
        connection.execute("SELECT")  # begins the transaction of a test, which is the test's to end
    with connection.transaction(block.name):
        try:
            yield block
        except BaseException as error:
            if connection.info.transaction_status is TransactionStatus.INERROR:
                block.note(error)
            raise
        if connection.info.transaction_status is TransactionStatus.INERROR:
            raise went_on(message, nested)


def went_on(message: StoredMessage, nested: str) -> HandlerError:
    """Return the error of a block that went on after a statement that failed."""
    return HandlerError(
        f"The handler of {message} went on after a statement that failed, so nothing of the block "
        f"can be committed; execute what may fail in `{nested}`"
    )


def missing(message: StoredMessage, block: str, package: str, extra: str) -> HandlerError:
    """Return the error of a block whose package is not installed."""
    return HandlerError(
        f"The handler of {message} needs {package} for {block}; install it with "
        f"pip install 'reservation[{extra}]'"
    )
