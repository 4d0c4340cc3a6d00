"""A connection of an async handler's own, whose transaction commits by itself."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus

from reservation.blocks.savepoint import went_on
from reservation.errors import HandlerError
from reservation.messages.message import StoredMessage
from reservation.postgres.sqlstates import Fault, errors_in, fault_of, races_in

# What gives a connection whose transaction is committed in the end, as a pool's `connection` does.
Connect = Callable[[], AbstractAsyncContextManager[AsyncConnection[Any]]]


@asynccontextmanager
async def connected_by(
    connect: Connect, message: StoredMessage, noted: list[psycopg.Error]
) -> AsyncIterator[AsyncConnection[Any]]:
    """Give a connection, and note the faults of the environment that it meets.

    The block fails if it goes on after a statement that failed, or without its connection.
    """
    is_within = False
    try:
        async with connect() as connection:
            is_within = True
            try:
                yield connection
            except BaseException as error:
                if connection.broken:
                    noted += errors_in(error)
                elif connection.info.transaction_status is TransactionStatus.INERROR:
                    noted += races_in(error)
                raise
            if connection.info.transaction_status is TransactionStatus.INERROR:
                raise went_on(message, "async with connection.transaction():")
            if connection.closed and not connection.broken:
                raise _closed(message)
            is_within = False
            if connection.broken:  # and the handler ignored it; nothing would be committed
                raise psycopg.OperationalError(
                    "The connection was lost in a block of context.connected()"
                )
    except psycopg.Error as error:  # also of the commit, of which it may be unknown
        if not is_within and fault_of(error) in (Fault.LOST, Fault.RACE):
            noted.append(error)
        raise


def _closed(message: StoredMessage) -> HandlerError:
    return HandlerError(
        f"The handler of {message} closed the connection of context.connected(), so nothing of the "
        f"block can be committed; leave close() out"
    )
