"""An interrupt from the keyboard while modules are imported, which can take a second.

As an exception it would end in a traceback, or be swallowed where the import system calls back.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # as shells count SIGINT


@contextmanager
def quietly_interrupted() -> Iterator[None]:
    """Let SIGINT end the process without a word in a block in which nothing is open yet."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, or handled by a program that calls us
        yield
        return
    try:
        signal.signal(signal.SIGINT, _end)
    except ValueError:  # only the main thread may
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)
