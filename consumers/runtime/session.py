"""A consumer's connection, and opening a new one when it is lost, however long that takes.

The work of a consumer is in one transaction, so a lost connection loses nothing. What is known of
the database from before may be wrong afterwards, so a consumer joins its group and reads its
positions again (`consumers.group.membership.Membership`).
"""

import os
import socket
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import Connection, IsolationLevel, conninfo

from consumers.runtime.backoff import Backoff
from consumers.runtime.observability.logs import Log
from consumers.runtime.observability.telemetry import Telemetry
from consumers.runtime.stopping import Stop
from reservation.errors import (
    DatabaseUnavailableError,
    MissingObjectError,
    SchemaError,
    SessionError,
    StoreError,
)
from reservation.postgres.connection import check_address, connect, set_for_session
from reservation.postgres.error_translation import translated
from reservation.postgres.exchange.keeping_connection import KeepingConnection, was_closed
from reservation.postgres.pooler import check_session, is_pooled
from reservation.postgres.queries import load_queries
from reservation.store.schema.preconditions import check_preconditions, explained

_QUERIES = load_queries("consumers.runtime")

# Seconds that an attempt to connect takes at most, where the address does not say otherwise.
CONNECT_TIMEOUT = 10

# With these a server that went silent counts as lost after a minute.
_KEEPALIVES = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}


def process_name() -> str:
    """Return the name under which the store shows this process: the host and the process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def durable(database_url: str) -> str:
    """Return an address with settings by which a lost connection is noticed."""
    check_address(database_url)
    return _with(database_url, _KEEPALIVES)


def impatient(address: str) -> str:
    """Return an address with the longest that connecting may take, unless that is set."""
    if "PGCONNECT_TIMEOUT" in os.environ:
        return address
    return _with(address, {"connect_timeout": CONNECT_TIMEOUT})


class Session:
    """The connection of one consumer, with the settings that its batches rely on.

    As a context manager it is opened on entering, where every error is raised, and closed on
    leaving.

    Attributes:
        address: that of the database, with settings by which a lost connection is noticed.
        application_name: what the server's own views show for the connection.
    """

    def __init__(
        self,
        database_url: str,
        application_name: str,
        log: Log,
        telemetry: Telemetry | None = None,
        *,
        until: Stop | None = None,
    ) -> None:
        self.address = durable(database_url)
        self.application_name = application_name
        self._log = log
        self._telemetry = telemetry or Telemetry()
        self._until = until
        self._backoff = Backoff()
        self._reported: str | None = None  # what the log has as the cause
        self._connection: Connection[Any] | None = None
        self.was_refused = False

    def __enter__(self) -> Self:
        try:
            self._connection = self._open()
        except StoreError as error:
            if self._until is None:
                raise
            self.recover(error, self._until)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def connection(self) -> Connection[Any]:
        """The connection there is now, in autocommit; another one after `recover`."""
        if self._connection is None:
            raise DatabaseUnavailableError("There is no connection to the database")
        return self._connection

    def close(self) -> None:
        """Close the connection; the server rolls back what was not committed."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def works(self) -> None:
        """Note that the database works."""
        self._backoff.reset()
        if self._reported is not None:
            self._reported = None
            self._telemetry.has_database()
            self._log.info("database_available")

    def recover(self, error: StoreError, stop: Stop) -> bool:
        """Open a new connection, after a while, and try again until there is one.

        Where a handler closed the former one, the database is not to blame, and there is no wait.
        """
        former, self._connection = self._connection, None
        self.was_refused = False
        if former is not None and was_closed(former):
            try:
                self._connection = self._open_unless_stopped(stop)
            except StoreError as again:
                error, self.was_refused = again, True
            else:
                return self._connection is not None
        elif former is not None:
            error = explained(error, former)
            former.close()
        while True:
            if not is_waited_for(error):
                raise error
            self._telemetry.lacks_database(error)
            delay = self._backoff.next()
            self._report(error, delay)
            if stop.wait(delay):
                return False
            try:
                self._connection = self._open_unless_stopped(stop)
            except StoreError as again:
                error, self.was_refused = again, True
            else:
                return self._connection is not None

    def _report(self, error: StoreError, delay: float) -> None:
        """Log a cause in full once, as long as it stays the same."""
        cause, delay = str(error), round(delay, 3)
        if cause == self._reported:
            self._log.info("database_awaited", delay=delay)
        else:
            self._log.warning("database_unavailable", error=cause, delay=delay)
            self._reported = cause

    def _open(self) -> Connection[Any]:
        connection = connect(
            impatient(self.address),
            application_name=self.application_name,
            autocommit=True,
            kind=KeepingConnection,
        )
        try:
            connection.isolation_level = IsolationLevel.READ_COMMITTED
            check_preconditions(connection)
            pooled = self._check_session(connection)
            with translated():
                if pooled:  # then `connect` has set nothing
                    set_for_session(connection)
                connection.execute("RESET row_security")  # handlers have tables of their own
                connection.execute(_QUERIES["settings"])
                _watch_the_client(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_session(self, connection: Connection[Any]) -> bool:
        """Refuse a pooler that does not keep the session, and return whether there is one."""
        with translated():
            pooled = is_pooled(connection)
        if pooled:
            with connect(
                self.address, application_name=self.application_name, autocommit=True
            ) as other:
                check_session(connection, other)
        return pooled

    def _open_unless_stopped(self, stop: Stop) -> Connection[Any] | None:
        """Open a connection in a thread, so that neither name look-ups nor networks delay a stop.

        Returns None if it was time to stop first; the thread then closes what it gets.
        """
        opened: list[Connection[Any]] = []
        failed: list[Exception] = []
        over = threading.Lock()
        ready, done = os.pipe()

        def work() -> None:
            try:
                opened.append(self._open())
            except Exception as error:  # noqa: BLE001  raised again in the main thread
                failed.append(error)
            if over.acquire(blocking=False):
                os.close(done)
            else:
                for connection in opened:
                    connection.close()

        try:
            threading.Thread(target=work, name="connecting", daemon=True).start()
            # Without end: connecting has a limit of its own.
            while not over.locked():
                if stop.wait(CONNECT_TIMEOUT, ready) and over.acquire(blocking=False):
                    os.close(done)
                    return None
        finally:
            os.close(ready)
        if failed:
            raise failed[0]
        return opened[0]


def is_waited_for(error: StoreError) -> bool:
    """Return whether a running consumer waits until the cause of an error is gone.

    It waits for whatever the environment lack. A schema of another version ends the consumer,
    because only another version of this package can use it. A pooler does so too, because only
    another address helps.
    """
    if isinstance(error, MissingObjectError):
        return True
    return not isinstance(error, SchemaError | SessionError)


def _watch_the_client(connection: Connection[Any]) -> None:
    """Let the server end a statement whose client is gone, where its system can detect that."""
    try:
        connection.execute(_QUERIES["watch_the_client"])
    except (psycopg.DataError, psycopg.NotSupportedError):
        return


def _with(database_url: str, defaults: Mapping[str, int]) -> str:
    """Return the address with defaults for what it does not set."""
    given = conninfo.conninfo_to_dict(database_url)
    missing = {name: value for name, value in defaults.items() if name not in given}
    return conninfo.make_conninfo(database_url, **missing)
