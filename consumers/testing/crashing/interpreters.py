"""The processes that run the component: one for each hash seed, which forks one for each run.

An interpreter decides on the order of sets when it begins, so another order takes another one. It
imports the component once, and each run begins with the state that the import left.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from consumers.testing.crashing.inside.host import Ready, Setting
from consumers.testing.crashing.orders import (
    Began,
    Called,
    Calling,
    Done,
    Ended,
    Observed,
    Order,
    Paused,
    Record,
)
from consumers.testing.crashing.report import CrashKitError

_RECORDS: msgspec.json.Decoder[Record | Ready] = msgspec.json.Decoder(Record | Ready)

# Seconds that a run may take, and that an interpreter may take to import the component.
PATIENCE = 60.0


@dataclass(slots=True)
class RunResult:
    """A run's result.

    Attributes:
        calls: the calls of handlers, in order.
        observed: what the handlers did that they must not.
        category: the category that was read last.
        done: how it came to its end; None if it did not.
        last: the handler that was called last, and its message.
        status: the exit status of its process.
        text: what the process wrote to standard error.
    """

    calls: list[Called] = field(default_factory=list)
    observed: list[Observed] = field(default_factory=list)
    category: str | None = None
    done: Done | None = None
    last: str | None = None
    status: int | None = None
    text: str = ""


class PythonProcess:
    """A process that imports the component, with a hash seed; ended when its block is left."""

    def __init__(self, setting: Setting, hash_seed: int) -> None:
        self._app = setting.app
        self._errors: IO[bytes] = tempfile.TemporaryFile("a+b")  # noqa: SIM115  closed with the process
        environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, setting.path))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "consumers.testing.crashing.inside"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
        self._read = b""
        self._write(msgspec.json.encode(setting))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What a handler left running is in the same group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            if file is not None:
                file.close()

    def wait_until_ready(self) -> None:
        """Wait until the component is imported."""
        ready = next(self._records(PATIENCE), None)
        if not isinstance(ready, Ready) or ready.error is not None:
            reason = ready.error if isinstance(ready, Ready) else self._text()
            raise CrashKitError(f"{self._app} cannot be imported in a process of its own: {reason}")
        if ready.threads:
            raise CrashKitError(
                f"Importing {self._app} starts threads, which a forked process does not have: "
                f"{', '.join(ready.threads)}; start them at their first use"
            )

    def run(self, order: Order) -> RunResult:
        """Run the component to the end of the run."""
        self.begin(order)
        ran = RunResult()
        self.follow(ran, PATIENCE)
        if ran.status is None:
            raise CrashKitError(
                f"A run of {self._app} did not end within {PATIENCE:.0f} seconds; the last call "
                f"was of {ran.last or 'no handler'}; give whatever handlers wait for a timeout"
            )
        return ran

    def begin(self, order: Order) -> None:
        """Begin a run, to be followed."""
        self._write(msgspec.json.encode(order))

    def go_on(self) -> None:
        """Let a run that pauses go on."""
        self._write(b"")

    def follow(self, ran: RunResult, seconds: float) -> bool:
        """Take in what a run reports, until it ends or pauses."""
        for record in self._records(seconds):
            match record:
                case Began():
                    ran.category = record.category
                case Calling():
                    ran.last = f"{record.handler}, with {record.message}"
                case Called():
                    ran.calls.append(record)
                case Observed():
                    ran.observed.append(record)
                case Paused():
                    return True
                case Done():
                    ran.done = record
                case Ended():
                    ran.status = record.status
                    ran.text = self._text()
                    return False
        return False

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None  # noqa: S101  it is a pipe
        self._process.stdin.write(line + b"\n")

    def _records(self, seconds: float) -> Iterator[Record | Ready]:
        """Give records as they come, for so long; end with the process too."""
        assert self._process.stdout is not None  # noqa: S101  it is a pipe
        deadline = time.monotonic() + seconds
        while True:
            while b"\n" in self._read:
                line, _, self._read = self._read.partition(b"\n")
                yield _RECORDS.decode(line)
            left = max(deadline - time.monotonic(), 0)
            if not select.select([self._process.stdout], [], [], left)[0]:
                return
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                return
            self._read += more

    def _text(self) -> str:
        """Return the end of what the process wrote to standard error."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(size - 4000, 0))
        return self._errors.read().decode(errors="replace").strip()


def settings(
    app: str, app_dir: Path | None, allowed: Collection[str], *, reverses: bool
) -> Setting:
    """Return the setting of interpreters."""
    here = str(Path(__file__).resolve().parents[3])
    path = [str(Path(entry).resolve()) if entry else str(Path.cwd()) for entry in sys.path]
    if app_dir is not None:
        path = [str(app_dir.resolve()), *path]
    return Setting(app, path if here in path else [*path, here], tuple(allowed), reverses)
