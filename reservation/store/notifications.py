"""Notices of new messages, for readers that have read a category to its end and wait for more.

`set_notices` adds a trigger to the log, or removes it; `Notices` waits.
``sql/reservation/notice.sql`` explains why no notice is lost. A notice only ends a wait early: a
reader without notices finds the same messages a moment later.
"""

import select
import threading
import time
from types import TracebackType
from typing import Any, Protocol, Self

from psycopg import Connection, conninfo, sql

from reservation.errors import ReservationError
from reservation.postgres.connection import check_address, connect
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.store.schema.install import INSTALL_LOCK, check_installed
from reservation.store.schema.notice_trigger import notices_given, switch_notices

_QUERIES = load_queries("reservation.store", "notifications.sql")

# Seconds until the next attempt to connect, or the next look at whether notices are on.
RETRY = 10.0

# Seconds that connecting may take if the address sets no limit; the reader waits meanwhile.
CONNECT_TIMEOUT = 3

# The channel on which there is notice of scheduled messages that are due soon.
_SCHEDULED = "reservation.scheduled"


class Pause(Protocol):
    """A wait that something else may end too, such as a request to stop."""

    def wait(self, seconds: float, wake: int | None = None) -> object:
        """Wait for at most so many seconds, or until the file descriptor ``wake`` can be read."""


class _Pause:
    def wait(self, seconds: float, wake: int | None = None) -> None:
        select.select([] if wake is None else [wake], [], [], seconds)


def set_notices(connection: Connection[Any], on: bool) -> bool:
    """Turn notices of new messages on or off, in one transaction."""
    with translated(), connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [INSTALL_LOCK])
        check_installed(connection)
        before = notices_given(connection)
        if before or on:
            switch_notices(connection, on)
        return before != on


class Notices:
    """Waits for new messages of one category, on a connection that does nothing else.

    A reader that finds nothing new calls `wait` and then reads again. One that finds something
    calls `found`, which stops asking for notices if it finds more than it was woken for, so that
    writers do not notify it while it is busy. Without notices, because the trigger is missing or
    the connection was lost, waits are short, and the reader polls.

    One thread waits; any thread may call `leave`.

    Attributes:
        missing: why there are no notices, as far as is known; None while there are.
        scheduled: whether there was notice of a scheduled message that is due soon; whoever has
            looked at the schedule sets it back.
    """

    def __init__(
        self,
        connection: Connection[Any] | None,
        database_url: str,
        category: str,
        *,
        application_name: str = "reservation",
    ) -> None:
        """Prepare; nothing is asked of the database yet.

        Args:
            connection: the reader's own, in autocommit. It is used to look whether notices are on;
                only then is a second connection opened, to wait on. None if the caller knows that
                they are on.
            database_url: the address of the same database, for the second connection.
            category: the category to wait for.
            application_name: the name of the second connection in the server's views.

        Raises:
            DatabaseUnavailableError: the address cannot be read.
        """
        check_address(database_url)
        self._reader = connection
        self._database_url = _limited(database_url)
        self._category = category
        self._application_name = application_name
        self._listening: Connection[Any] | None = None
        self._lock = threading.RLock()
        self._expecting = False
        self._woken = False
        self._try_at = 0.0
        self.missing: str | None = "not asked yet"
        self.scheduled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def wait(self, seconds: float, *, poll: float = 0.1, pause: Pause | None = None) -> bool:
        """Wait until the category is worth another look.

        The first call, and the first one after `leave`, only asks for notices of what is written
        from then on. It returns at once, because something may have been written since the reader
        looked. What is written after a notice gives notice too, so the reader looks once for each.

        Args:
            seconds: how long to wait for a notice, in seconds.
            poll: how long to wait without notices, in seconds.
            pause: what waits, if something else is to end the wait too; None for `select`.

        Returns:
            Whether to look again for another reason than the time that has passed.

        Raises:
            DatabaseUnavailableError: the reader's own connection was lost.
        """
        pause = pause or _Pause()
        with self._lock:
            self._woken = False
            if self._listening is not None and self._expecting:
                self._woken = self._told(self._listening, seconds, pause)
                return self._woken
            if self._expect():
                return True
        # Where a writer holds it up, that was waited for already, in the server.
        pause.wait(0 if self.missing is None else poll)
        return False

    def found(self) -> bool:
        """Note that the reader has found something.

        What it was woken for is usually all there is. So after the first find it goes on asking for
        notices, and can wait again without a statement. If it finds something again before it
        waits, or found something without a notice, it leaves.

        Returns:
            Whether it goes on asking for them. Then there is notice of everything that it could not
            yet see when it looked.
        """
        asks, self._woken = self._woken and self._expecting, False
        if not asks:
            self.leave()
        return asks

    def leave(self) -> None:
        """Stop asking for notices until the next `wait`."""
        with self._lock:
            if self._listening is not None and self._expecting:
                self._expecting = False
                try:
                    with translated():
                        self._listening.execute(_QUERIES["leave"], [self._category])
                except ReservationError as error:
                    self._lose(str(error))

    def renew(self, connection: Connection[Any]) -> None:
        """Continue with another connection of the reader, which has lost the one it had.

        The connection that waits is replaced too, because the server may be another.

        Args:
            connection: the reader's new connection, in autocommit.
        """
        self.close()
        self._reader = connection
        self._try_at = 0.0

    def close(self) -> None:
        """Close the connection that waits; the reader's own is left open."""
        self._expecting = False
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def _expect(self) -> bool:
        """Ask for notices; return False if that is not possible, or not yet."""
        if time.monotonic() < self._try_at:
            return False
        if self._reader is not None and not notices_given(self._reader):
            self._lose("they are off")
            return False
        try:
            with translated():
                if self._listening is None:
                    self._listening = self._listen()
                rows = self._listening.execute(_QUERIES["expect"], [self._category]).fetchall()
                self._expecting = bool(rows[0][0])
                # Whoever notified until now has committed: the look that comes next will see it.
                self._notified(self._listening)
        except ReservationError as error:
            self._lose(str(error))
            return False
        self.missing = None
        return self._expecting

    def _listen(self) -> Connection[Any]:
        connection = connect(
            self._database_url, application_name=self._application_name, autocommit=True
        )
        try:
            # psycopg would keep the notifications that come with the answer to a statement, and
            # they are of no use: see _expect.
            connection.add_notify_handler(lambda _: None)
            for setting in ("idle_session_timeout", "statement_timeout"):
                connection.execute(sql.SQL("SET {} = 0").format(sql.Identifier(setting)))
            channel = connection.execute(_QUERIES["channel"], [self._category]).fetchall()[0][0]
            for name in (channel, _SCHEDULED):
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(name)))
        except BaseException:
            connection.close()
            raise
        return connection

    def _told(self, listening: Connection[Any], seconds: float, pause: Pause) -> bool:
        try:
            with translated():
                if not self._notified(listening):
                    pause.wait(seconds, listening.fileno())
                    if not self._notified(listening):
                        return False
        except ReservationError as error:
            self._lose(str(error))
        return True

    def _notified(self, connection: Connection[Any]) -> bool:
        """Take what has arrived, without waiting; return whether there was a notification.

        By libpq's own calls: those that psycopg makes may leave some that libpq has taken from the
        socket already, and waiting for the socket would then miss them.
        """
        for _ in range(
            2
        ):  # the last words of a server that ends the connection come before its end
            connection.pgconn.consume_input()
        notified = False
        while notification := connection.pgconn.notifies():
            notified = True
            self.scheduled |= notification.relname == _SCHEDULED.encode()
        return notified

    def _lose(self, why: str) -> None:
        self.missing = why
        self.close()
        self._try_at = time.monotonic() + RETRY


def _limited(database_url: str) -> str:
    """Return the address with a limit to the time that connecting takes."""
    if "connect_timeout" in conninfo.conninfo_to_dict(database_url):
        return database_url
    return conninfo.make_conninfo(database_url, connect_timeout=CONNECT_TIMEOUT)
