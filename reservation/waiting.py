"""Waiting until a file descriptor can be read, whatever its number is.

`select.select` refuses numbers from 1,024 on, which a process with many open files has.
"""

import errno
import math
import os
import select
from collections.abc import Iterable

_LONGEST = 2**31 - 1  # milliseconds, of one call


def readable(descriptors: Iterable[int], seconds: float | None = None) -> set[int]:
    """Wait until one of some file descriptors can be read, or the time is over; return which can.

    `OSError` is raised if one of them is closed.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    limit = None if seconds is None else min(math.ceil(max(seconds, 0.0) * 1000), _LONGEST)
    found = poll.poll(limit)
    if any(event & select.POLLNVAL for _, event in found):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return {descriptor for descriptor, _ in found}
