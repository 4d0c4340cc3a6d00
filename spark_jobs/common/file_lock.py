"""A folder that only one process at a time may write to."""

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from reservation.errors import ReservationError


@dataclass(frozen=True, slots=True)
class Lock:
    """The locked file, which can hold a line for the next process that locks it."""

    _file: int

    @property
    def noted(self) -> str | None:
        """The line; None if there is none."""
        return os.pread(self._file, 1024, 0).decode(errors="replace").strip() or None

    def note(self, line: str | None) -> None:
        """Replace the line, and flush it to disk; None removes it."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{line or ''}\n".encode(), 0)
        os.fsync(self._file)

    @staticmethod
    def noted_in(file: Path) -> str | None:
        """Return the line in a file without locking it; None if there is no such file."""
        with suppress(OSError):
            return file.read_text(errors="replace").strip() or None
        return None


def require_empty(
    folder: Path, file: str, ours: Collection[str], what: str, error: type[ReservationError]
) -> None:
    """Refuse a folder that holds something else, before anything in it is changed."""
    try:
        there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    except OSError as refused:
        raise error(f"The {what} {folder} cannot be read: {refused.strerror}") from refused
    # A file system has this folder from the start.
    others = there - {file, "lost+found", *ours, Lock.noted_in(folder / file)}
    if others:
        raise error(
            f"The folder {folder} is not empty and contains no {what}: it holds {min(others)!r}; "
            f"name another folder"
        )


def require_unlocked(folder: Path, file: str, what: str, error: type[ReservationError]) -> None:
    """Refuse a folder that another run has locked, without changing anything in it."""
    try:
        lock = os.open(folder / file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return  # it is new, or `file_lock` reports what is wrong with it
    try:
        _take(lock, fcntl.LOCK_SH, folder, what, error)
    finally:
        os.close(lock)


@contextmanager
def file_lock(folder: Path, file: str, what: str, error: type[ReservationError]) -> Iterator[Lock]:
    """Lock a folder, which is made if necessary, against other runs."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder / file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as refused:
        raise error(f"The {what} {folder} cannot be made: {refused.strerror}") from refused
    try:
        _take(lock, fcntl.LOCK_EX, folder, what, error)
        yield Lock(lock)
    finally:
        os.close(lock)


def _take(lock: int, mode: int, folder: Path, what: str, error: type[ReservationError]) -> None:
    try:
        fcntl.flock(lock, mode | fcntl.LOCK_NB)
    except BlockingIOError as refused:
        raise error(
            f"The {what} in {folder} is in use by another run; wait for it, or name another"
        ) from refused
