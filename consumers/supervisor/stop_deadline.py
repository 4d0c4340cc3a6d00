"""A limit to how long a process takes to stop, whatever its main thread is doing.

A handler may block, loop or swallow every exception, so the limit is kept by a thread, and what it
does is to end the process. That is safe at any moment: what was not committed is rolled back by the
server when the connection closes, as after SIGKILL.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

import structlog

from consumers.runtime.observability.logs import Log
from consumers.runtime.stopping import STOP_SIGNALS, Stop, close
from reservation.waiting import readable


class StopDeadline:
    """Ends the process if a block does not end in time once it is to stop.

    Python's own C code writes the numbers of signals to a pipe that is read here, because a main
    thread that blocks does not come to run a signal handler.
    """

    def __init__(self, stop: Stop, seconds: float, unfinished: Callable[[], Iterable[Log]]) -> None:
        self._stop = stop
        self._seconds = seconds
        self._unfinished = unfinished
        self._thread = threading.Thread(target=self._watch, name="grace", daemon=True)

    def __enter__(self) -> Self:
        self._signals_read, self._signals_write = os.pipe()
        self._end_read, self._end_write = os.pipe()
        os.set_blocking(self._signals_read, False)
        os.set_blocking(self._signals_write, False)
        self._before = signal.set_wakeup_fd(self._signals_write, warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(self._before)
        close(self._end_write)
        self._thread.join()
        for descriptor in (self._signals_read, self._signals_write, self._end_read):
            close(descriptor)

    def _watch(self) -> None:
        try:
            self._wait()
        except (OSError, ValueError):
            # Its descriptors are gone, and so may be all others: a handler has closed them. The
            # host names the message.
            structlog.get_logger().error("descriptors_closed")
            os._exit(1)

    def _wait(self) -> None:
        # Signals are for the main thread, whose waits they interrupt.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        stopping = False
        while not stopping:
            ready = readable([self._end_read, self._signals_read, *self._stop.descriptors])
            if self._end_read in ready:
                return
            is_requested = any(descriptor in ready for descriptor in self._stop.descriptors)
            stopping = self._was_signalled() or is_requested
        self._stop.request()
        if readable([self._end_read], self._seconds):
            return
        for log in self._unfinished():
            log.warning("batch_abandoned", grace=self._seconds)
        os._exit(0)

    def _was_signalled(self) -> bool:
        """Whether a signal to stop has come."""
        numbers = b""
        with contextlib.suppress(BlockingIOError):
            numbers = os.read(self._signals_read, 4096)
        return any(number in STOP_SIGNALS for number in numbers)
