"""Transactions whose statements are sent with their begin and their commit."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus

from reservation.postgres.connection import check_encoding
from reservation.postgres.exchange.exchange import BEGIN, exchange
from reservation.postgres.exchange.keeping_connection import End, KeepingConnection
from reservation.postgres.exchange.request import Answer, Request
from reservation.postgres.sqlstates import Fault, fault_at_commit, fault_of, is_condition


@contextlib.contextmanager
def transaction_of(
    connection: Connection[Any], requests: Sequence[Request] = ()
) -> Iterator[list[Answer]]:
    """Run a block in a transaction, whose first statements are sent with its begin."""
    check_encoding(connection)
    if not isinstance(connection, KeepingConnection):
        with connection.transaction():
            yield exchange(connection, requests)
        return
    connection.begun, connection.end = True, End.OPEN
    try:
        try:
            yield exchange(connection, [BEGIN, *requests])[1:]
        finally:
            connection.begun = False
    except BaseException:
        _roll_back(connection)
        raise
    if connection.end is not End.COMMITTED:
        connection.execute("COMMIT")


def run_transaction(
    connection: KeepingConnection, requests: Sequence[Request]
) -> list[Answer] | None:
    """Run a transaction of which all is sent at once; None if something of ours refused it."""
    check_encoding(connection)
    connection.begun, connection.end = True, End.OPEN
    try:
        return exchange(connection, [BEGIN, *requests], commits=True)[1:]
    except psycopg.Error as error:
        fault = fault_at_commit(error) if was_refused(connection) else fault_of(error)
        if not is_condition(error) and fault is not Fault.MESSAGE:
            raise
    finally:
        connection.begun = False
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
