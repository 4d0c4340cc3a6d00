"""The file from which Java loads Spark's classes fastest, in the user's cache.

Most of a small job's time is spent on reading, checking and linking about 20,000 classes. Java can
write the classes that a process has used to a file, and share them with later processes (class data
sharing, JEP 350). `spark_jobs.jobs.prepare` lets it do so: in the foreground, or in the background
once a command has ended. There is a file for each installed Java and Spark; the newest are kept.
"""

import errno
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from spark_jobs.common.address import DATABASE_VARIABLE
from spark_jobs.session import java

# Set to ``off``, nothing is stored in the background.
VARIABLE = "RESERVATION_SPARK_PREPARE"

# How many files are kept, each of about 180 MB, and how much has to be free for a further one.
_KEPT = 3
_FREE = 500_000_000

# How often storing them in the background is begun; ends by a signal, such as a container's, count.
_ATTEMPTS = 3

_log = logging.getLogger(__name__)


def stored() -> Path:
    """Return the file for the Java and the Spark of this process, which may not be there yet.

    Times are compared to the second, because layers of images hold no more.
    """
    home = java.home()
    parts = [
        f"{path} {int(path.stat().st_mtime)}"
        for path in (home / "lib" / "modules", home / "bin" / "java", _jars())
        if path.exists()
    ]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
    return java.cache() / f"spark-classes-{digest}.jsa"


def _jars() -> Path:
    return Path(os.environ.get("SPARK_HOME") or pyspark.__path__[0]) / "jars"


@contextmanager
def writing(lock: int | None = None) -> Iterator[Path]:
    """Yield where to write the file, which is then put in place; one process at a time does so.

    A process that has not inherited the lock waits for its turn.
    """
    place = stored()
    place.parent.mkdir(parents=True, exist_ok=True)
    if lock is None:
        lock = _open_lock(place.parent)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in place.parent.glob(".classes-*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".classes-", dir=place.parent) as folder:
            beside = Path(folder) / place.name
            yield beside
            if not beside.is_file():
                raise OSError(errno.ENOSPC, "Java could not write it; is there room for 200 MB?")
            beside.replace(place)
        _attempts(place).unlink(missing_ok=True)
        _remove_oldest(place.parent)
    finally:
        os.close(lock)


def store_in_background() -> bool:
    """Have the file written once this process has ended; return whether that was begun.

    It is not if the file is there, another process writes it, or it cannot be written.
    """
    if os.environ.get(VARIABLE) == "off":
        return False
    try:
        place = stored()
        if place.exists():
            return False
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = _open_lock(place.parent)
        try:
            return _is_free(lock) and _is_worthwhile(place) and _begin(lock)
        finally:
            os.close(lock)
    except OSError as error:
        _log.info("Java's classes are not stored: %s", error)
        return False


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_worthwhile(place: Path) -> bool:
    """Whether there is room, and earlier attempts have not failed too often; count this one."""
    attempts, fault = _attempts(place), None
    if attempts.exists() and attempts.stat().st_size >= _ATTEMPTS:
        fault = f"{_ATTEMPTS} attempts have failed"
    elif shutil.disk_usage(place.parent).free < _FREE:
        fault = f"{place.parent} has too little room"
    if fault is not None:
        _log.info("Java's classes are not stored: %s", fault)
        return False
    with attempts.open("a") as file:
        file.write(".")
    return True


def _begin(lock: int) -> bool:
    """Start the process that awaits the end of this one; it inherits the lock, and no secret."""
    awaited, held = os.pipe()  # the other end closes with this process
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != DATABASE_VARIABLE and not name.startswith("PG")
    }
    try:
        subprocess.Popen(  # noqa: S603  this package's own module
            [sys.executable, "-P", "-m", "spark_jobs.jobs.prepare", str(lock), str(awaited)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            pass_fds=(lock, awaited),
            start_new_session=True,
        )
    except OSError:
        os.close(held)
        raise
    finally:
        os.close(awaited)
    return True


def _open_lock(cache: Path) -> int:
    return os.open(cache / "spark-classes.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _attempts(place: Path) -> Path:
    return place.with_suffix(".attempts")


def _remove_oldest(cache: Path) -> None:
    files = sorted(cache.glob("spark-classes-*.jsa"), key=lambda path: path.stat().st_mtime)
    for path in files[:-_KEPT]:
        path.unlink(missing_ok=True)
