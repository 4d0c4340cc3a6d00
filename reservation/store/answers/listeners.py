"""The connections on which the threads of a program wait for outcomes."""

import threading
import time
import weakref
from typing import Any

from psycopg import AsyncConnection, Connection, conninfo
from psycopg.pq import TransactionStatus

from reservation.errors import ReservationError, StoreError
from reservation.postgres.pooler import is_pooled
from reservation.store.listening import RETRY
from reservation.store.notifications import Notices

# The name of connections that wait for outcomes, in the server's views. It is none of a consumer.
APPLICATION_NAME = "reservation-wait"


def address_of(connection: Connection[Any] | AsyncConnection[Any]) -> str:
    """Return the address of another connection to the same database."""
    known = connection.info.get_parameters()
    password = connection.info.password
    return conninfo.make_conninfo(**known, **({"password": password} if password else {}))


def check_free(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Refuse to wait on a connection in a transaction, which may hold what is waited for."""
    in_transaction = connection.info.transaction_status is not TransactionStatus.IDLE
    if in_transaction or not connection.autocommit:
        raise StoreError(
            "Waiting for an outcome in a transaction could wait for ever: what is written in it is "
            "handled only after its commit; commit first, and wait with a store from open(), or on "
            "a connection in autocommit"
        )


class Listeners:
    """Keeps connections that listen for new messages, for one waiting thread each.

    They are opened when they are needed, kept for the next one that waits for the same category,
    and closed with the store. Behind a pooler there are none, and who waits polls.
    """

    def __init__(self) -> None:
        self._idle: dict[str, list[Notices]] = {}
        self._lock = threading.Lock()
        self._try_at = 0.0
        self._address: str | None = None
        weakref.finalize(self, _close, self._idle)

    def take(self, category: str, connection: Connection[Any]) -> Notices | None:
        """Return a listener for a category; None if there cannot be one now."""
        with self._lock:
            idle = self._idle.get(category)
            if idle:
                return idle.pop()
            if time.monotonic() < self._try_at:
                return None
        try:
            if self._address is None:
                self._address = "" if is_pooled(connection) else address_of(connection)
            if self._address:
                return Notices(None, self._address, category, application_name=APPLICATION_NAME)
        except ReservationError:
            pass
        self._try_at = time.monotonic() + RETRY
        return None

    def give_back(self, category: str, listener: Notices, *, keep: bool) -> None:
        """Take a listener back whose thread waits no longer."""
        listener.leave()
        if not keep or listener.missing is not None:
            listener.close()
            return
        with self._lock:
            self._idle.setdefault(category, []).append(listener)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        with self._lock:
            _close(self._idle)


def _close(idle: dict[str, list[Notices]]) -> None:
    while idle:
        _, listeners = idle.popitem()
        for listener in listeners:
            listener.close()
