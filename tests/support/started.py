"""The command line as processes of their own, and waiting for what they log."""

import json
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from consumers.options import Options
from consumers.supervisor.assignment import Assignment
from consumers.supervisor.memory import Memory
from consumers.supervisor.process import run_process

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 60.0


def command_line(*arguments: str) -> list[str]:
    """Return the words that start our command line, whatever the current folder holds."""
    return [sys.executable, "-P", "-m", "cli", *arguments]


def run_cli(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path = EXAMPLES
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return subprocess.run(
        command_line(*arguments),
        env={**os.environ, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def _run_alone(assignment: Assignment) -> None:
    failed = run_process(assignment, 0, Memory(1, assignment.consumer_ids))
    sys.exit(0 if failed is None else 1)


class Forked:
    """One consumer in a process of its own that does not have to import anything first.

    It runs what ``reservation start --only`` runs in its process, and starts within a few
    milliseconds. It has no host.
    """

    def __init__(
        self,
        database_url: str,
        category: str,
        *,
        batch_size: int,
        partitions: int | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["pytest", "bank", "consumers.supervisor.process"])
        reads = (("account", category),)
        options = Options(batch_size, partitions=partitions)
        assignment = Assignment(("bank:account",), str(EXAMPLES), reads, database_url, options)
        self._process = context.Process(target=_run_alone, args=(assignment,))
        self._process.start()

    def send(self, number: int) -> None:
        """Send a signal."""
        os.kill(self._process.pid or 0, number)

    def stop(self) -> int:
        """Ask it to stop; return the exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> bool:
        """End it with SIGKILL; return whether it ran until then."""
        return self._end(signal.SIGKILL) == -signal.SIGKILL

    def _end(self, number: int) -> int:
        self.send(number)
        self._process.join(PATIENCE)
        status = self._process.exitcode
        assert status is not None, "it does not end"
        self._process.close()
        return status


class Started:
    """A ``reservation start`` whose JSON log can be waited for."""

    def __init__(
        self,
        database_url: str | None,
        *arguments: str,
        app: str = "bank:account",
        cwd: Path = EXAMPLES,
        env: Mapping[str, str] = os.environ,
        prefix: Sequence[str] = (),
    ) -> None:
        named = {} if database_url is None else {"RESERVATION_DATABASE_URL": database_url}
        self.process = subprocess.Popen(
            [*prefix, *command_line("start", app, *arguments)],
            env={**env, **named},
            cwd=cwd,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._passed: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)
        self.process.stderr.close()

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("{"):
                self._events.put(json.loads(line))
        self._events.put(None)

    @property
    def workers(self) -> list[psutil.Process]:
        """The processes that run the consumers, in the order in which they were started."""
        return psutil.Process(self.process.pid).children()

    def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        """Wait for a log event, or find it among earlier ones; each is found once."""
        for logged in self._passed:
            if matches(logged, event, fields):
                self._passed.remove(logged)
                return logged
        while True:
            logged = self._events.get(timeout=PATIENCE)
            assert logged is not None, f"ended without {event}: {''.join(self.lines)}"
            if matches(logged, event, fields):
                return logged
            self._passed.append(logged)

    def forget(self) -> None:
        """Find none of the events again that were passed over so far."""
        self._passed.clear()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def stop_group(self, number: int) -> int:
        """Send a signal to the whole process group, as a terminal does; return the exit status."""
        os.killpg(self.process.pid, number)
        return self.process.wait(PATIENCE)

    @property
    def log(self) -> str:
        """Everything that was logged, once the process has ended."""
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return "".join(self.lines)


def matches(logged: dict[str, Any], event: str, fields: dict[str, Any]) -> bool:
    """Tell whether a log event is of a name and has these fields."""
    return logged["event"] == event and fields.items() <= logged.items()


def wait_until_gone(admin, database_url, patience=PATIENCE):
    """Wait until no consumer is connected to the database any more."""
    admin.execute(
        """
        DO $$
        BEGIN
          FOR n IN 1..6000 LOOP
            PERFORM pg_stat_clear_snapshot();
            EXIT WHEN NOT EXISTS (
              SELECT FROM pg_stat_activity WHERE application_name LIKE 'reservation account %');
            PERFORM pg_sleep(0.01);
          END LOOP;
        END $$
        """
    )
    return admin.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'reservation account %'"
    ).fetchone() == (0,)
