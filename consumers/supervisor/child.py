"""Starting a process of a host: by Python's own `subprocess`, which leaves no helper behind.

What the process is to do goes through a pipe, as the address of the database may hold a password.
So do the numbers of the file descriptors that it inherits.
"""

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from dataclasses import astuple, dataclass

from consumers.group.inspection.stored_positions import ConsumerId
from consumers.runtime.stopping import STOP_SIGNALS
from consumers.supervisor.assignment import Assignment
from consumers.supervisor.memory import Memory

_CODE = (
    "import sys; sys.path[:] = {path!r}; "
    "from consumers.supervisor.process import main; main({descriptor})"
)


@dataclass(frozen=True, slots=True)
class Inherited:
    """A process's links to its host.

    Attributes:
        assignment: what it is to do.
        number: which of the host's processes it is, from 0.
        processes: how many there are.
        memory: the descriptor of the memory that they share.
        failures: the pipe to which it writes why it cannot go on.
        lives: the pipe that its end closes, which its host notices.
        host: the pipe that can be read once the host has died.
        reports: the socket for its telemetry; None if it reports nothing.
    """

    assignment: Assignment
    number: int
    processes: int
    memory: int
    failures: int
    lives: int
    host: int
    reports: int | None


@dataclass(frozen=True, slots=True)
class EndReason:
    """The reason a process ends.

    Attributes:
        consumer_id: the consumer that failed.
        text: what is wrong.
        is_about_data: whether a message is the reason.
    """

    consumer_id: ConsumerId
    text: str
    is_about_data: bool


class Child:
    """A process that runs.

    Attributes:
        number: which of the host's it is, from 0.
    """

    def __init__(
        self,
        assignment: Assignment,
        number: int,
        processes: int,
        memory: Memory,
        host: int,
        reports: socket.socket | None,
    ) -> None:
        self.number = number
        self._failures, failures = os.pipe()
        self._ended, lives = os.pipe()
        read, write = os.pipe()
        report_to = None if reports is None else reports.fileno()
        inherited = Inherited(
            assignment, number, processes, memory.descriptor, failures, lives, host, report_to
        )
        optional = [] if report_to is None else [report_to]
        # Neither this process nor the new one, which inherits that, takes a signal until it is
        # ready to act on it.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own code
                [
                    sys.executable,
                    *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    "-c",
                    _CODE.format(path=sys.path, descriptor=read),
                ],
                pass_fds=[read, memory.descriptor, failures, lives, host, *optional],
                stdin=subprocess.DEVNULL,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            os.close(read)
            os.close(failures)
            os.close(lives)
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(inherited, pipe)

    def fileno(self) -> int:
        """Return what can be read once the process has ended."""
        return self._ended

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    @property
    def exit_code(self) -> int:
        """Its exit status, or the negative number of a signal."""
        return self._process.wait()

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def wait(self) -> EndReason | None:
        """Wait for its end; return why it could not go on, if it has reported that."""
        self._process.wait()
        os.close(self._ended)
        os.set_blocking(self._failures, False)
        with os.fdopen(self._failures, "rb") as pipe:
            reason = pipe.read()
        if not reason:
            return None
        consumer_id, text, is_about_data = json.loads(reason)
        return EndReason(tuple(consumer_id), text, is_about_data)


def say(descriptor: int, reason: EndReason) -> None:
    """Report to the host why this process cannot go on."""
    os.write(descriptor, json.dumps(astuple(reason)).encode())
