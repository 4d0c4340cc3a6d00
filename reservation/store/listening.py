"""A connection on which readers of a store are notified, and which does nothing else.

psycopg may lose notifications that arrive while their connection runs a query, so what readers ask
on it is asked under a lock, and whatever came with the answer is taken then.
"""

import threading
import time
from collections import defaultdict
from typing import Any, Protocol

from psycopg import Connection, conninfo, sql

from reservation.errors import ReservationError
from reservation.postgres.connection import check_address, connect
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.waiting import readable

_QUERIES = load_queries("reservation.store", "notifications.sql")

# Seconds that connecting may take if the address sets no limit; the reader waits meanwhile.
CONNECT_TIMEOUT = 3

# Seconds until the next attempt to connect, or the next look at whether notices are on.
RETRY = 10.0

# The channels that all readers listen on: scheduled messages that are due soon, and pauses.
_SCHEDULED = "reservation.scheduled"
_PAUSES = "reservation.pauses"


class Pause(Protocol):
    """A wait that something else may end too, such as a request to stop."""

    def wait(self, seconds: float, wake: int | None = None) -> object:
        """Wait for at most so many seconds, or until the file descriptor ``wake`` can be read."""


class Selecting:
    """A wait that nothing else ends."""

    def wait(self, seconds: float, wake: int | None = None) -> None:
        """Wait."""
        readable([] if wake is None else [wake], seconds)


class Subscription:
    """One category reader's share of a connection that listens.

    Attributes:
        category: the category whose new messages are of interest.
        notified: whether a notification came that the reader has not yet looked at.
        scheduled: whether there was one of a scheduled message.
        pauses: whether there was one that something was paused or resumed.
        number: of the connection on which the reader is notified; None if it is on none.
        heard: a file descriptor that can be read once the reader is notified, if it has one.
    """

    heard: int | None = None

    def __init__(self, category: str) -> None:
        self.category = category
        self.notified = False
        self.scheduled = False
        self.pauses = False
        self.number: int | None = None

    def answer(self) -> None:
        """Let the next wait wait again."""

    def notify(self, *, scheduled: bool = False, pauses: bool = False) -> None:
        """Note a notification."""
        self.scheduled |= scheduled
        self.pauses |= pauses
        self.notified = True


class Listening:
    """A connection that listens as long as it has subscriptions; any thread may use it.

    It is opened for the first subscription, and after a loss for the next that is asked for. Here
    the reader that waits takes the notifications in, so there is one at a time.
    """

    def __init__(self, database_url: str, application_name: str) -> None:
        check_address(database_url)
        self._database_url = _limited(database_url)
        self._application_name = application_name
        self._lock = threading.RLock()
        self._connection: Connection[Any] | None = None
        self._number = 0  # of connections there were; it tells a lost one from the next
        self._channels: defaultdict[str, set[Subscription]] = defaultdict(set)
        self._failed: ReservationError | None = None
        self._try_at = 0.0

    def subscription(self, category: str) -> Subscription:
        """Return what a reader of a category has of this connection; `subscribe` begins it."""
        return Subscription(category)

    def subscribe(self, subscription: Subscription) -> bool:
        """Have writers notify a reader; False if one of them holds that up.

        Whoever notified until now has committed: the look that comes next will see it.
        """
        with self._lock, translated():
            if self._connection is None:
                self._connection = self._connect()
                self._number += 1
                self._opened(self._connection)
            if subscription.number != self._number:
                self._listen(self._connection, subscription)
            rows = self._connection.execute(_QUERIES["expect"], [subscription.category]).fetchall()
            self._take_in(self._connection)
            subscription.notified = False
            return bool(rows[0][0])

    def rest(self, subscription: Subscription) -> None:
        """Have writers notify a reader no longer, which stays subscribed."""
        with self._lock, translated():
            if self._connection is not None and subscription.number == self._number:
                self._connection.execute(_QUERIES["leave"], [subscription.category])
                self._take_in(self._connection)

    def cancel(self, subscription: Subscription, *, expecting: bool) -> None:
        """End a subscription; without any, the connection is closed."""
        with self._lock:
            for subscriptions in self._channels.values():
                subscriptions.discard(subscription)
            if not any(self._channels.values()):
                self.lose(self._number)
            elif expecting:
                try:
                    self.rest(subscription)
                except ReservationError:
                    self.lose(subscription.number)
            subscription.number = None

    def is_on(self, subscription: Subscription) -> bool:
        """Whether the connection on which a reader subscribed is still there."""
        return subscription.number is not None and subscription.number == self._number

    def wait(self, subscription: Subscription, seconds: float, pause: Pause) -> None:
        """Wait until a reader is notified, which a lost connection does too."""
        with translated():
            connection = self._connection
            if connection is None:
                return
            self._take_in(connection)
            if not subscription.notified:
                pause.wait(seconds, connection.fileno())
                self._take_in(connection)

    def lose(self, number: int | None) -> None:
        """Close the connection of this number, if it is still there; its readers are notified."""
        with self._lock:
            if self._connection is None or number != self._number:
                return
            connection, self._connection = self._connection, None
            self._number += 1
            connection.close()
            for subscriptions in self._channels.values():
                for subscription in subscriptions:
                    subscription.notify()
            self._channels.clear()

    def try_again(self) -> None:
        """Forget that there was no connection a moment ago."""
        self._failed = None

    def _connect(self) -> Connection[Any]:
        """Open a connection; a failure counts for all who ask for the same within `RETRY`."""
        if self._failed is not None and time.monotonic() < self._try_at:
            raise self._failed
        try:
            with translated():
                return self._open()
        except ReservationError as error:
            self._failed, self._try_at = error, time.monotonic() + RETRY
            raise

    def _opened(self, connection: Connection[Any]) -> None:
        """Do what a new connection needs."""

    def _open(self) -> Connection[Any]:
        connection = connect(
            self._database_url, application_name=self._application_name, autocommit=True
        )
        try:
            # For those that come with the answer to a statement.
            connection.add_notify_handler(lambda notice: self._dispatch(notice.channel))
            for setting in ("idle_session_timeout", "statement_timeout"):
                connection.execute(sql.SQL("SET {} = 0").format(sql.Identifier(setting)))
            for channel in (_SCHEDULED, _PAUSES):
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        except BaseException:
            connection.close()
            raise
        return connection

    def _listen(self, connection: Connection[Any], subscription: Subscription) -> None:
        rows = connection.execute(_QUERIES["channel"], [subscription.category]).fetchall()
        channel = str(rows[0][0])
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        self._channels[channel].add(subscription)
        subscription.number = self._number
        subscription.pauses = True  # there was no notice of them before

    def _take_in(self, connection: Connection[Any]) -> None:
        """Take what has arrived, without waiting.

        By libpq's own calls: those that psycopg makes may leave some that libpq has taken from the
        socket already, and waiting for the socket would then miss them.
        """
        with self._lock:
            for _ in range(2):  # the last words of a server that ends it come before its end
                connection.pgconn.consume_input()
            while notification := connection.pgconn.notifies():
                self._dispatch(notification.relname.decode())

    def _dispatch(self, channel: str) -> None:
        if channel in (_SCHEDULED, _PAUSES):
            for subscriptions in self._channels.values():
                for subscription in subscriptions:
                    subscription.notify(scheduled=channel == _SCHEDULED, pauses=channel == _PAUSES)
        for subscription in self._channels.get(channel, ()):
            subscription.notify()


def _limited(database_url: str) -> str:
    """Return the address with a limit to the time that connecting takes."""
    if "connect_timeout" in conninfo.conninfo_to_dict(database_url):
        return database_url
    return conninfo.make_conninfo(database_url, connect_timeout=CONNECT_TIMEOUT)
