"""The demo's consumers: real processes of the command line, one of which is killed on the way."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from cli.common.errors import NotInOrder


class ConsumerProcesses:
    """Processes of ``reservation start``, each with a log file, ended when the block ends."""

    def __init__(self, app: str, app_dir: Path, database_url: str, logs: Path) -> None:
        self._command = [sys.executable, "-P", "-m", "cli", "start", app, "--app-dir", str(app_dir)]
        self._environment = {**os.environ, "RESERVATION_DATABASE_URL": database_url}
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for which in list(self._running):
            self.kill(which)

    def start(self, which: str) -> int:
        """Start one consumer, ``commands`` or ``reserved``, and return its process id."""
        with self._log(which).open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  our own command line
                [*self._command, "--only", which],
                env=self._environment,
                stderr=log,
                start_new_session=True,
            )
        self._running[which] = process
        return process.pid

    def kill(self, which: str) -> None:
        """End one consumer with SIGKILL, as a machine that fails would."""
        process = self._running.pop(which)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def check(self) -> None:
        """Make sure that those that were started still run."""
        for which, process in self._running.items():
            if process.poll() is not None:
                raise NotInOrder(
                    f"The consumer of {which} ended with status {process.returncode}: "
                    f"{self._last_line(which)}"
                )

    def stop(self) -> dict[str, int]:
        """Ask all to stop, as a supervisor would, and return their exit statuses."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        statuses = {which: process.wait(60) for which, process in self._running.items()}
        self._running.clear()
        return statuses

    def _log(self, which: str) -> Path:
        return self._logs / f"{which}.log"

    def _last_line(self, which: str) -> str:
        lines = self._log(which).read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it logged nothing"
