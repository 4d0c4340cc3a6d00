"""Renewing the lease of a member of a group while its main thread is in a batch."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from psycopg import Connection

from consumers.runtime.stopping import STOP_SIGNALS
from reservation.postgres.connection import connect
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

# Seconds that a batch takes before the lease is renewed, and then between two renewals.
INTERVAL = 1.0

_QUERIES = load_queries("consumers.group")


class Heartbeat:
    """Renews a member's lease while a block takes long, from a thread with its own connection.

    The thread starts with the first block, the connection is opened with the first beat. A lost
    connection is opened again at the next beat. Without beats, the lease expires.

    To wake the thread for each block would delay the work in the block. So it is woken once, and
    then looks by itself after the interval, whichever blocks began and ended meanwhile.

    Attributes:
        member: the member whose lease is renewed; None for none.
        besides: what else is done at each beat, on the same connection.
        is_alive: asked before each beat; without a beat, the lease expires.
    """

    def __init__(self, database_url: str, application_name: str, lease: float) -> None:
        self._database_url = database_url
        self._application_name = application_name
        self._lease = lease
        self._changed = threading.Condition()
        self._due: float | None = None  # the next beat, by the monotonic clock; None for none
        self._asleep = False  # whether the thread has to be woken for a block
        self._closed = False
        self._thread: threading.Thread | None = None
        self._connection: Connection[Any] | None = None
        self.member: int | None = None
        self.besides: Callable[[Connection[Any]], object] = _nothing
        self.is_alive: Callable[[], bool] = lambda: True

    def __enter__(self) -> Self:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
            self._thread.start()
        with self._changed:
            self._due = time.monotonic() + INTERVAL
            if self._asleep:
                self._asleep = False
                self._changed.notify()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._changed:
            self._due = None

    def close(self) -> None:
        """Stop the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        # Signals are for the main thread, whose waits they interrupt.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        while self._wait():
            if self.is_alive():
                self._beat()
        self._disconnect()

    def _wait(self) -> bool:
        """Wait until a beat is due; return False once closed."""
        with self._changed:
            while not self._closed:
                if self._due is None:
                    self._asleep = True
                    self._changed.wait()
                    self._asleep = False
                    if not self._closed:
                        self._changed.wait(INTERVAL)
                elif self._due <= time.monotonic():
                    self._due = time.monotonic() + INTERVAL
                    return True
                else:
                    self._changed.wait(self._due - time.monotonic())
            return False

    def _beat(self) -> None:
        try:
            with translated():
                if self._connection is None:
                    self._connection = connect(
                        self._database_url,
                        application_name=self._application_name,
                        autocommit=True,
                    )
                self._connection.execute(
                    _QUERIES["beat"], {"member": self.member, "lease": self._lease}
                )
                self.besides(self._connection)
        except Exception:  # noqa: BLE001  a handler may have closed its descriptor
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
            self._connection = None


def _nothing(connection: Connection[Any]) -> None:
    """Do nothing else at a beat."""
    del connection
