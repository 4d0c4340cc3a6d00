"""The store's record of a supervisor's consumers, read now and then by a thread of its own.

A request for metrics takes what was read last, so it never waits for the database, and any number
of requests are one read. The thread may hang in a network that went silent. Then the time of its
last read shows that what it read is out of date.
"""

import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import structlog

from consumers.group.inspection.stored_positions import ConsumerId
from consumers.group.inspection.summary import Summary, read_summary
from consumers.runtime.observability.logs import Log
from consumers.runtime.session import Session
from consumers.runtime.stopping import STOP_SIGNALS
from reservation.errors import ReservationError
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.supervisor")

# Seconds between two reads, unless a read takes long: then so many times as long as it took.
INTERVAL = 5.0
SHARE = 10.0

# Seconds that a read may be late before the store counts as not readable. More than any statement
# of it may take; see queries.sql.
LATE_AFTER = 40.0

# Seconds for which the last numbers are kept where the store is not readable.
KEPT_FOR = 60.0


@dataclass(frozen=True, slots=True)
class StoreReading:
    """The store as known at a moment.

    Attributes:
        up: whether the last read succeeded, and the next is not late.
        summary: what was read last; None if nothing was, or that is too long ago.
    """

    up: bool
    summary: Summary | None


class StoreReader:
    """Reads the state of consumers, in a thread of its own, while the context is entered."""

    def __init__(self, database_url: str, consumer_ids: Sequence[ConsumerId]) -> None:
        self._database_url = database_url
        self._consumer_ids = sorted(set(consumer_ids))
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        # By the monotonic clock: when it was read last, and when that is out of date.
        self._read_at = 0.0
        self._expected_by = 0.0
        self._summary: Summary | None = None
        self._reported: str | None = None  # the cause that was logged last
        self._thread = threading.Thread(target=self._run, name="store-reader", daemon=True)

    def __enter__(self) -> Self:
        # Signals are for the main thread, whose waits they interrupt.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [*STOP_SIGNALS, signal.SIGALRM])
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The thread is not waited for: it may be at a database that does not answer.
        self._stopping.set()

    def latest(self) -> StoreReading:
        """Return what was read last. This never waits."""
        with self._lock:
            now = time.monotonic()
            up = now < self._expected_by
            is_recent = up or now < self._read_at + KEPT_FOR
            return StoreReading(up, self._summary if is_recent else None)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._read_on_a_connection()
            except (ReservationError, OSError) as error:
                self._failed(str(error))
                self._stopping.wait(INTERVAL)

    def _read_on_a_connection(self) -> None:
        """Read again and again on one connection."""
        name = f"reservation metrics {self._consumer_ids[0][0]}"
        with Session(self._database_url, name, Log(*self._consumer_ids[0])) as session:
            with translated():
                session.connection.execute(_QUERIES["settings"])
            while not self._stopping.is_set():
                began = time.monotonic()
                summary = read_summary(session.connection, self._consumer_ids)
                self._stopping.wait(self._succeeded(summary, time.monotonic() - began))

    def _succeeded(self, summary: Summary, took: float) -> float:
        """Note what was read; return the seconds until the next read."""
        pause = max(INTERVAL, SHARE * took)
        with self._lock:
            self._read_at = time.monotonic()
            self._expected_by = self._read_at + pause + LATE_AFTER
            self._summary = summary
        if self._reported is not None:
            self._reported = None
            structlog.get_logger().info("store_metrics_available")
        return pause

    def _failed(self, cause: str) -> None:
        """Note that the store is not readable, and log its cause unless that was logged last."""
        with self._lock:
            self._expected_by = 0.0
        if cause != self._reported and not self._stopping.is_set():
            self._reported = cause
            structlog.get_logger().warning("store_metrics_unavailable", error=cause)
