"""A folder that one process at a time may write to."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reservation.errors import ReservationError


@contextmanager
def locked(folder: Path, file: str, what: str, error: type[ReservationError]) -> Iterator[None]:
    """Have a folder, which is made if need be, to the exclusion of other runs.

    Args:
        folder: the folder.
        file: the name of the file in it that is locked.
        what: what the folder is called in errors.
        error: what is raised where it is in use or can not be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / file, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as refused:
        raise error(f"The {what} {folder} can not be made: {refused.strerror}") from refused
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as refused:
            raise error(
                f"The {what} in {folder} is in use by another run; wait for it, or name another"
            ) from refused
        yield
    finally:
        os.close(lock)
