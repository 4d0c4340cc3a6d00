"""The one connection on which all consumers of a process are notified of new messages."""

import contextlib
import os
import signal
import threading
import weakref
from typing import Any

from psycopg import Connection

from consumers.runtime.stopping import STOP_SIGNALS, close
from reservation.errors import ReservationError
from reservation.postgres.error_translation import translated
from reservation.store.listening import Listening, Pause, Subscription
from reservation.waiting import readable

# Seconds after which the thread of a connection that was closed ends at the latest.
CLOSED_WITHIN = 5.0


class SharedListening(Listening):
    """A connection whose notifications a thread takes in, which wakes the readers they are for."""

    def subscription(self, category: str) -> Subscription:
        """Return what a reader has of this connection: a pipe that ends its wait."""
        return _Bell(category)

    def wait(self, subscription: Subscription, seconds: float, pause: Pause) -> None:
        """Wait until a reader is notified, which a lost connection does too."""
        if not subscription.notified:
            pause.wait(seconds, subscription.heard)
        subscription.answer()

    def _opened(self, connection: Connection[Any]) -> None:
        threading.Thread(
            target=self._run, args=[connection, self._number], name="notices", daemon=True
        ).start()

    def _run(self, connection: Connection[Any], number: int) -> None:
        """Take in what comes, until the connection is closed."""
        # Signals are for the main thread, whose waits they interrupt.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        descriptor = connection.fileno()
        while True:
            try:
                # A connection that is closed meanwhile is not noticed, but its number is past.
                readable([descriptor], CLOSED_WITHIN)
                with self._lock:
                    if number != self._number:
                        return
                    with translated():
                        self._take_in(connection)
            except (ReservationError, OSError, ValueError):
                self.lose(number)
                return


class _Bell(Subscription):
    """A subscription whose notifications make a pipe readable."""

    def __init__(self, category: str) -> None:
        super().__init__(category)
        self._heard, self._ring = os.pipe()
        self.heard = self._heard
        for descriptor in (self._heard, self._ring):
            os.set_blocking(descriptor, False)
        weakref.finalize(self, _close, self._heard, self._ring)

    def notify(self, *, scheduled: bool = False, pauses: bool = False) -> None:
        """Note a notification, and end the wait of the reader."""
        super().notify(scheduled=scheduled, pauses=pauses)
        with contextlib.suppress(OSError):  # it is full of earlier ones
            os.write(self._ring, b"\0")

    def answer(self) -> None:
        """Let the next wait wait again."""
        with contextlib.suppress(OSError):
            os.read(self._heard, 4096)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        close(descriptor)
