"""Renewing the leases of a process's members of groups while their threads are in batches."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from psycopg import Connection

from consumers.runtime.stopping import STOP_SIGNALS
from reservation.errors import ReservationError
from reservation.postgres.connection import connect
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

# Seconds after which a lease is renewed, and between two looks for leases to renew.
INTERVAL, LOOK = 1.0, 0.5

# Seconds to wait for the end of the thread.
JOIN = 5.0

_QUERIES = load_queries("consumers.group")


def _nothing(connection: Connection[Any]) -> None:
    """Do nothing besides."""
    del connection


class Lease:
    """The lease of one member, renewed while a block runs; without beats, it expires.

    Attributes:
        member: the member whose lease is renewed; None for none.
        renewed: when it was renewed last, by the monotonic clock.
        besides: what else is done at each beat, on the same connection.
        look: the same, more often: whenever `wants_look` says so.
        wants_look: returns whether to `look`.
        is_alive: returns whether to renew it, before each beat.
    """

    def __init__(self, heartbeat: "Heartbeat") -> None:
        self._heartbeat = heartbeat
        self.is_busy = False
        self.member: int | None = None
        self.renewed = 0.0
        self.besides: Callable[[Connection[Any]], object] = _nothing
        self.look: Callable[[Connection[Any]], object] = _nothing
        self.wants_look: Callable[[], bool] = lambda: False
        self.is_alive: Callable[[], bool] = lambda: True

    def __enter__(self) -> Self:
        self.is_busy = True
        self._heartbeat.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.is_busy = False

    @property
    def is_due(self) -> bool:
        """Whether the block has gone on for so long that the lease has to be renewed."""
        return self.is_busy and time.monotonic() - self.renewed >= INTERVAL and self.is_alive()

    def close(self) -> None:
        """Stop renewing it."""
        self._heartbeat.end(self)


class Heartbeat:
    """Renews the leases of a process, from a thread with a connection of its own.

    The thread starts with the first block, and ends with the last lease. The connection is opened
    with the first beat; a lost one is opened again at the next.
    """

    def __init__(self, database_url: str, application_name: str, lease: float) -> None:
        self._database_url = database_url
        self._application_name = application_name
        self._seconds = lease
        self._leases: list[Lease] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def lease(self) -> Lease:
        """Return the lease of another member."""
        lease = Lease(self)
        with self._lock:
            self._leases.append(lease)
        return lease

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._stopping.clear()
                    self._thread = threading.Thread(
                        target=self._run, args=[self._stopping], name="heartbeat", daemon=True
                    )
                    self._thread.start()

    def end(self, lease: Lease) -> None:
        """Stop renewing a lease; after the last, the thread ends, and its connection with it."""
        with self._lock:
            self._leases = [other for other in self._leases if other is not lease]
            thread = None if self._leases else self._thread
            if thread is not None:
                self._stopping.set()
                self._stopping, self._thread = threading.Event(), None
        if thread is not None:
            thread.join(JOIN)

    def _run(self, stopping: threading.Event) -> None:
        # Signals are for the main thread, whose waits they interrupt.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        connection: Connection[Any] | None = None
        while not stopping.wait(LOOK):
            with self._lock:
                due = [lease for lease in self._leases if lease.is_due]
                look = [lease for lease in self._leases if lease.is_busy and lease.wants_look()]
            try:
                if due or look:
                    connection = connection or self._connect()
                    if due:
                        self._beat(connection, due)
                    for lease in look:
                        with contextlib.suppress(ReservationError):
                            lease.look(connection)
            except Exception:  # noqa: BLE001  a handler may have closed its descriptor
                _close(connection)
                connection = None
        _close(connection)

    def _beat(self, connection: Connection[Any], due: list[Lease]) -> None:
        began = time.monotonic()
        members = sorted(lease.member for lease in due if lease.member is not None)
        with translated():
            connection.execute(_QUERIES["beat"], {"members": members, "lease": self._seconds})
        for lease in due:
            lease.renewed = began
        for lease in due:
            with contextlib.suppress(ReservationError):  # the others still do
                lease.besides(connection)

    def _connect(self) -> Connection[Any]:
        connection = connect(
            self._database_url, application_name=self._application_name, autocommit=True
        )
        with translated():
            # What is done besides must not delay the next beat.
            connection.execute(_QUERIES["limit_waits"])
        return connection


def _close(connection: Connection[Any] | None) -> None:
    if connection is not None:
        with contextlib.suppress(Exception):
            connection.close()
