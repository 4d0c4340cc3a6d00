"""Stopping, on a signal or on the death of the process that started this one."""

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from reservation.postgres import forks
from reservation.waiting import readable

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# What signal.getsignal() returns: a function, SIG_DFL or SIG_IGN, or None for a handler that was
# not installed from Python.
_Handler = Callable[[int, FrameType | None], Any] | int | None


def close(descriptor: int) -> None:
    """Close a file descriptor, unless a handler has closed it."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


class Stop:
    """The request to stop this process, and a wait that ends with it.

    Used as a context manager around what a process does, in its main thread, it takes over SIGTERM
    and SIGINT, unless `request` alone is to stop it. A signal handler may run between any two
    instructions of that thread, so it takes no lock: it writes a byte to a pipe, and whoever waits
    selects on the other end. Afterwards the signals are handled as before, or by default where
    what handled them was not Python's; a process that is about to end ignores them.
    """

    def __init__(
        self,
        *,
        ends_process: bool = False,
        takes_signals: bool = True,
        also: int | None = None,
    ) -> None:
        self._ends_process = ends_process
        self._takes_signals = takes_signals
        self._handlers: dict[signal.Signals, _Handler] = {}
        self._blocked: set[int] = set()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        # What else can be read once it is time to stop, such as when another process has died.
        self._descriptors = [self._read, *([] if also is None else [also])]
        self._requested = False

    def __enter__(self) -> Self:
        if not self._takes_signals:
            return self
        self._handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self.listen()
        # A fork has the pipe too, and a signal for it is not for this process.
        forks.after_fork(self, Stop._restore)
        return self

    def listen(self) -> None:
        """Take the signals over, also from whoever did so in the meantime."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._takes_signals:
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            if self._ends_process:
                # A mask is of one thread, and Python restores other handlers before it has ended.
                for number in STOP_SIGNALS:
                    signal.signal(number, signal.SIG_IGN)
            else:
                self._restore()
                signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        close(self._read)
        close(self._write)

    @property
    def requested(self) -> bool:
        """Whether it is time to stop."""
        return self._requested or self.wait(0)

    @property
    def descriptors(self) -> Sequence[int]:
        """The file descriptors; any of them can be read once it is time to stop."""
        return self._descriptors

    def request(self) -> None:
        """Ask to stop; safe in a signal handler."""
        self._requested = True
        with contextlib.suppress(BlockingIOError):  # the pipe is full of earlier requests
            os.write(self._write, b"\0")

    def wait(self, seconds: float, wake: int | None = None) -> bool:
        """Wait until it is time to stop, or until the time is over; return whether to stop."""
        if not self._requested:
            woken = [] if wake is None else [wake]
            ready = readable([*self._descriptors, *woken], seconds)
            self._requested = any(descriptor in ready for descriptor in self._descriptors)
        return self._requested

    def _restore(self) -> None:
        """Have the signals handled as before."""
        handlers, self._handlers = self._handlers, {}
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.request()
