"""Transactions whose statements are sent with their begin and their commit."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.errors import RaiseException
from psycopg.pq import TransactionStatus

from reservation.postgres.connection import check_encoding
from reservation.postgres.exchange.exchange import BEGIN, Beginning, exchange
from reservation.postgres.exchange.keeping_connection import End, KeepingConnection
from reservation.postgres.exchange.request import Answer, Request
from reservation.postgres.sqlstates import Fault, fault_at_commit, fault_of


@contextlib.contextmanager
def transaction_of(
    connection: Connection[Any], requests: Sequence[Request] | Beginning = ()
) -> Iterator[list[Answer]]:
    """Run a block in a transaction, whose first statements are sent with its begin."""
    check_encoding(connection)
    if not isinstance(connection, KeepingConnection):
        assert not isinstance(requests, Beginning)  # noqa: S101  it has such a connection
        with connection.transaction():
            yield exchange(connection, requests)
        return
    connection.begun, connection.end = True, End.OPEN
    try:
        try:
            if isinstance(requests, Beginning):
                yield requests.answers()
            else:
                yield exchange(connection, [BEGIN, *requests])[1:]
        finally:
            connection.begun = False
    except BaseException:
        _roll_back(connection)
        raise
    if connection.end is not End.COMMITTED:
        connection.execute("COMMIT")


def run_transaction(beginning: Beginning) -> list[Answer] | None:
    """Run a transaction of which all is sent at once; or take its answers, if it was sent."""
    connection = beginning.connection
    connection.end = End.OPEN
    try:
        return beginning.answers()
    except psycopg.Error as error:
        fault = fault_at_commit(error) if was_refused(connection) else fault_of(error)
        if not isinstance(error, RaiseException) and fault is not Fault.MESSAGE:
            raise
    finally:
        _roll_back(connection)
    return None


def _roll_back(connection: KeepingConnection) -> None:
    """End a transaction that has failed; nothing without one."""
    if connection.closed or connection.info.transaction_status is TransactionStatus.IDLE:
        return
    with contextlib.suppress(psycopg.Error):  # of a connection that was lost
        connection.execute("ROLLBACK")


def was_refused(connection: Connection[Any]) -> bool:
    """Return whether the commit that `exchange` sent was refused, and no statement before it."""
    return isinstance(connection, KeepingConnection) and connection.end is End.REFUSED
