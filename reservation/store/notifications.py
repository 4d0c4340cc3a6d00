"""Notices of new messages, for readers that have read a category to its end and wait for more.

`set_notices` adds a trigger to the log, or removes it; `Notices` waits.
``sql/reservation/notice.sql`` explains why no notice is lost. A notice only ends a wait early: a
reader without notices finds the same messages a moment later.
"""

import threading
import time
from types import TracebackType
from typing import Any, Self

from psycopg import Connection

from reservation.errors import ReservationError
from reservation.postgres.error_translation import translated
from reservation.store.listening import RETRY, Listening, Pause, Selecting
from reservation.store.schema.install import INSTALL_LOCK, check_installed
from reservation.store.schema.notice_trigger import notices_given, switch_notices

# Seconds until the next attempt to be notified, where a writer holds that up.
HELD_UP = 0.05


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

    The connection is its own, unless the program gives it one that several share (`Listening`).

    A reader that finds nothing new calls `wait` and then reads again. One that finds something
    calls `found`, which stops asking for notices if it finds more than it was woken for, so that
    writers do not notify it while it is busy. Without notices, because the trigger is missing or
    the connection was lost, waits are short, and the reader polls.

    One thread waits; any thread may call `leave`.

    Attributes:
        missing: why there are no notices, as far as is known; None while there are.
        scheduled: whether there was notice of a scheduled message that is due soon; whoever has
            looked at the schedule sets it back.
        pauses: whether there was notice that something was paused or resumed; likewise.
    """

    def __init__(
        self,
        connection: Connection[Any] | None,
        database_url: str,
        category: str,
        *,
        application_name: str = "reservation",
        listening: Listening | None = None,
    ) -> None:
        """Prepare; nothing is asked of the database yet.

        Args:
            connection: the reader's own, in autocommit. It is used to look whether notices are on;
                only then is a second connection opened, to wait on. None if the caller knows that
                they are on.
            database_url: the address of the same database, for the second connection.
            category: the category to wait for.
            application_name: the name of the second connection in the server's views.
            listening: the second connection, where others share it; it is not closed here.

        Raises:
            DatabaseUnavailableError: the address cannot be read.
        """
        self._reader = connection
        self._listening = listening or Listening(database_url, application_name)
        self._subscription = self._listening.subscription(category)
        self._lock = threading.RLock()
        self._expecting = False
        self._woken = False
        self._try_at = 0.0
        self.missing: str | None = "not asked yet"

    @property
    def scheduled(self) -> bool:
        """Whether there was notice of a scheduled message that is due soon."""
        return self._subscription.scheduled

    @scheduled.setter
    def scheduled(self, value: bool) -> None:
        self._subscription.scheduled = value

    @property
    def pauses(self) -> bool:
        """Whether there was notice that something was paused or resumed."""
        return self._subscription.pauses

    @pauses.setter
    def pauses(self, value: bool) -> None:
        self._subscription.pauses = value

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
        pause = pause or Selecting()
        with self._lock:
            self._woken = False
            if self._expecting and self._listening.is_on(self._subscription):
                self._woken = self._notified_within(seconds, pause)
                return self._woken
            if self._expect():
                return True
        pause.wait(min(poll, HELD_UP) if self.missing is None else poll)
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
        """Stop asking for notices until the next `wait`; not while another thread waits."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._expecting:
                self._expecting = False
                self._listening.rest(self._subscription)
        except ReservationError as error:
            self._lose(error)
        finally:
            self._lock.release()

    def renew(self, connection: Connection[Any]) -> None:
        """Continue with another connection of the reader, which has lost the one it had.

        The connection that waits is replaced too, because the server may be another.

        Args:
            connection: the reader's new connection, in autocommit.
        """
        self._listening.lose(self._subscription.number)
        self._listening.try_again()
        self.close()
        self._reader = connection
        self._try_at = 0.0

    def close(self) -> None:
        """Close the connection that waits; the reader's own is left open."""
        expecting, self._expecting = self._expecting, False
        self._listening.cancel(self._subscription, expecting=expecting)

    def _expect(self) -> bool:
        """Ask for notices; return False if that is not possible, or not yet."""
        if time.monotonic() < self._try_at:
            return False
        if self._reader is not None and not notices_given(self._reader):
            self._miss("they are off")
            return False
        try:
            self._expecting = self._listening.subscribe(self._subscription)
        except ReservationError as error:
            self._lose(error)
            return False
        self.missing = None
        return self._expecting

    def _notified_within(self, seconds: float, pause: Pause) -> bool:
        try:
            self._listening.wait(self._subscription, seconds, pause)
        except ReservationError as error:
            self._lose(error)
            return True
        if not self._subscription.notified:
            return False
        self._subscription.notified = False
        return True

    def _lose(self, error: ReservationError) -> None:
        self._listening.lose(self._subscription.number)
        self._miss(str(error))

    def _miss(self, why: str) -> None:
        self.missing = why
        self.close()
        self._try_at = time.monotonic() + RETRY
