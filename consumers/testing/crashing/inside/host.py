"""The process that imports the component once, and forks a process for each run.

Run as a program, it reads orders from standard input and writes records to what standard output
was; what the component prints goes nowhere.
"""

import os
import sys
import threading
import traceback
from typing import Any

import msgspec

from consumers.testing.crashing.orders import Ended, Order, Record


class Setting(msgspec.Struct, frozen=True):
    """A host's settings.

    Attributes:
        app: the component's app path.
        path: the import path.
        allowed: patterns of the accesses outside that are meant.
        reverses: whether folders are listed in the reverse order.
    """

    app: str
    path: list[str]
    allowed: tuple[str, ...] = ()
    reverses: bool = False


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The component is imported.

    Attributes:
        error: why it is not; None if it is.
        threads: the names of threads that its import started.
    """

    error: str | None = None
    threads: list[str] = []


class _Lines:
    """Lines of standard input, of which a forked process may read the next."""

    def __init__(self) -> None:
        self._read = b""

    def next(self) -> bytes:
        """Return the next line; empty at the end."""
        while b"\n" not in self._read:
            more = os.read(0, 65536)
            if not more:
                return b""
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line


def main() -> None:
    """Take orders until there are no more."""
    answers = os.dup(1)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123  a device
        os.dup2(nowhere.fileno(), 1)
    lines = _Lines()

    def send(record: Record | Ready) -> None:
        os.write(answers, msgspec.json.encode(record) + b"\n")

    setting = msgspec.json.decode(lines.next(), type=Setting)
    sys.path[:] = setting.path
    sys.dont_write_bytecode = True
    try:
        component = _prepare(setting)
    except BaseException as error:  # noqa: BLE001  the import may raise anything
        send(Ready(f"{type(error).__name__}: {error}"))
        return
    started = [thread.name for thread in threading.enumerate()[1:]]
    send(Ready(threads=started))
    while line := lines.next():
        order = msgspec.json.decode(line, type=Order)
        child = os.fork()
        if child == 0:
            _run(component, setting, order, send, lines)
        _, status = os.waitpid(child, 0)
        send(Ended(os.waitstatus_to_exitcode(status)))


def _prepare(setting: Setting) -> Any:
    from consumers.runtime.observability.logs import configure_logs
    from consumers.testing.crashing.inside import running  # noqa: F401  before the fork
    from consumers.testing.crashing.inside.observing import outside
    from reservation.app_path import load_component

    component = load_component(setting.app, None)
    configure_logs(level="error")
    outside.listen()
    outside.listen_to_psycopg()
    if setting.reverses:
        listdir = os.listdir
        os.listdir = lambda *given: list(reversed(listdir(*given)))  # type: ignore[assignment]
    return component


def _run(component: Any, setting: Setting, order: Order, send: Any, lines: _Lines) -> None:
    """Run the component in this process, and end it."""
    from consumers.testing.crashing.inside.calls import Calls
    from consumers.testing.crashing.inside.running import run

    status = 0
    try:
        calls = Calls(component, order, setting.allowed, send, lines.next)
        run(component, order, calls, send)
    except BaseException:  # noqa: BLE001  the component may raise anything
        status = 1
        traceback.print_exc()
    finally:
        # Nothing of the component's may delay or undo the end of the process.
        os._exit(status)


if __name__ == "__main__":
    main()
