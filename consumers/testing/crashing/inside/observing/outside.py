"""Effects outside the database: what a handler writes, removes, connects to and starts.

Python reports these to audit hooks (PEP 578), whatever library makes them. psycopg connects in C,
which no hook hears of, so its connecting is wrapped.
"""

import os
import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from fnmatch import fnmatch
from typing import Any

import psycopg

_WRITES = frozenset("wax+")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PROCESSES = {
    "subprocess.Popen": "starts the process {0}",
    "os.system": "starts the process {0}",
    "os.posix_spawn": "starts the process {0}",
    "os.exec": "becomes the process {0}",
    "os.fork": "forks",
}
_FILES = {
    "sqlite3.connect": "opens the database {0}",
    "os.remove": "removes {0}",
    "os.rename": "renames {0}",
    "os.mkdir": "makes the folder {0}",
    "os.rmdir": "removes the folder {0}",
    "os.link": "links {0}",
    "os.symlink": "links {0}",
    "os.truncate": "truncates {0}",
}


class Access:
    """Something that reaches outside.

    Attributes:
        name: what `allow=` can name: a path, a host and port, or a program.
        what: what is done, in words.
        path: the file that must still be there for it to count; None if it counts anyway.
        is_network: whether it is a connection, over which an idempotency key can be sent.
    """

    def __init__(
        self, name: str, what: str, *, path: str | None = None, is_network: bool = False
    ) -> None:
        self.name = name
        self.what = what
        self.path = path
        self.is_network = is_network

    def is_allowed(self, allowed: Iterable[str]) -> bool:
        """Return whether one of some patterns names it."""
        return any(fnmatch(self.name, pattern) for pattern in allowed)


# What the accesses of the current call are reported to. Threads that a handler starts do not have
# it, so there is a second place for the only call of a handler that is not async.
current_report: ContextVar[Callable[[Access], None] | None] = ContextVar(
    "current_report", default=None
)
only: list[Callable[[Access], None]] = []


def listen() -> None:
    """Hear of every access of this process, and of those that it forks; cannot be undone."""
    sys.addaudithook(_heard)


def listen_to_psycopg() -> None:
    """Hear of the connections that psycopg opens."""
    for class_ in (psycopg.Connection, psycopg.AsyncConnection):
        _wrap_connect(class_)


# Any: a class of connections.
def _wrap_connect(class_: Any) -> None:
    connect = class_.connect.__func__

    def connected(cls: Any, /, conninfo: str = "", **options: Any) -> Any:
        report = current_report.get()
        if report is not None:
            report(Access("psycopg.connect", "opens a connection of its own to a database"))
        return connect(cls, conninfo, **options)

    class_.connect = classmethod(connected)
    if class_ is psycopg.Connection:
        psycopg.connect = class_.connect


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    """Hear an event; called for each that Python reports, so what is not meant is passed first."""
    if event not in _HEARD:
        return
    report = current_report.get() or (only[-1] if only else None)
    if report is None:
        return
    access = _access(event, arguments)
    if access is not None:
        report(access)


def _access(event: str, arguments: tuple[Any, ...]) -> Access | None:
    """Return what an event is about, if that reaches outside."""
    if event == "open":
        return _opened(*arguments[:3])
    if event in _FILES:
        path = _path(arguments[0])
        if path is None or arguments[0] == ":memory:":
            return None
        gone = event in ("os.remove", "os.rmdir", "os.rename")
        return Access(path, _FILES[event].format(path), path=None if gone else path)
    if event in _PROCESSES:
        program = str(arguments[0]) if arguments else "fork"
        return Access(program, _PROCESSES[event].format(program))
    address = arguments[1] if len(arguments) > 1 else ""
    name = ":".join(map(str, address[:2])) if isinstance(address, tuple) else str(address)
    return Access(name, f"connects to {name}", is_network=True)


def _opened(path: Any, mode: Any, flags: Any) -> Access | None:
    """Return a file that is opened to be written to; devices and pipes do not count."""
    writes = bool(_WRITES & set(mode)) if isinstance(mode, str) else bool((flags or 0) & _WRITING)
    name = _path(path)
    if not writes or name is None or name.startswith(("/dev/", "/proc/")):
        return None
    return Access(name, f"writes to {name}", path=name)


def _path(path: Any) -> str | None:
    """Return the name of a file; None for a descriptor, whose file was opened before."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100  no file is looked at


_HEARD = frozenset({"open", "socket.connect", "socket.sendto", *_PROCESSES, *_FILES})
