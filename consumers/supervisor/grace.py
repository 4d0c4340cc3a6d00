"""A limit to how long a process takes to stop, whatever its main thread is doing.

A handler may block, loop or swallow every exception, so the limit is kept by a thread, and what it
does is to end the process. That is safe at any moment: what was not committed is rolled back by the
server when the connection closes, as after SIGKILL.
"""

import contextlib
import os
import select
import signal
import threading
import time
from types import TracebackType
from typing import Self

from consumers.runtime.observability.logs import Log
from consumers.runtime.stopping import STOP_SIGNALS, Stop, close


class Grace:
    """Ends the process if a block does not end in time once it is to stop.

    Signals are heard from Python's own C code, which writes their numbers to a pipe, because a main
    thread that blocks does not come to run a signal handler.
    """

    def __init__(self, stop: Stop, seconds: float, log: Log, *, impatient: bool) -> None:
        self._stop = stop
        self._seconds = seconds
        self._log = log
        self._impatient = impatient
        self._thread = threading.Thread(target=self._watch, name="grace", daemon=True)

    def __enter__(self) -> Self:
        self._heard, self._hear = os.pipe()
        self._over, self._end = os.pipe()
        os.set_blocking(self._heard, False)
        os.set_blocking(self._hear, False)
        self._before = signal.set_wakeup_fd(self._hear, warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(self._before)
        close(self._end)
        self._thread.join()
        for descriptor in (self._heard, self._hear, self._over):
            close(descriptor)

    def _watch(self) -> None:
        try:
            self._wait()
        except (OSError, ValueError):
            # Its descriptors are gone, and so may be all others: a handler has closed them.
            os._exit(1)

    def _wait(self) -> None:
        # Signals are for the main thread, whose waits they interrupt.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        heard = 0
        stopping = False
        while not stopping:
            ready = select.select([self._over, self._heard, *self._stop.watched], [], [])[0]
            if self._over in ready:
                return
            heard += self._signals()
            stopping = heard > 0 or any(descriptor in ready for descriptor in self._stop.watched)
        self._stop.request()
        deadline = time.monotonic() + self._seconds
        while (left := deadline - time.monotonic()) > 0 and not (self._impatient and heard > 1):
            if self._over in select.select([self._over, self._heard], [], [], left)[0]:
                return
            heard += self._signals()
        self._log.warning("batch_abandoned", grace=self._seconds, signals=heard)
        os._exit(0)

    def _signals(self) -> int:
        """Count the signals to stop that came since."""
        numbers = b""
        with contextlib.suppress(BlockingIOError):
            numbers = os.read(self._heard, 4096)
        return sum(number in STOP_SIGNALS for number in numbers)
