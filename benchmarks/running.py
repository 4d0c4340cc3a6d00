"""The consumers as processes, started as in production, and their log."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
PATIENCE = 300.0  # seconds to wait before something must be wrong


class Running:
    """A ``reservation start`` that ends with the block, and its progress according to its log.

    Attributes:
        process: the process that was started.
    """

    def __init__(
        self,
        database_url: str,
        *arguments: str,
        app: str = "bank:account",
        app_dir: Path = EXAMPLES,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cli", "start", app, "--app-dir", app_dir, *arguments],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLES}",
                "RESERVATION_DATABASE_URL": database_url,
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        self._changed = threading.Condition()
        self._events: list[dict[str, Any]] = []
        self._read: Counter[str] = Counter()
        self._reached: dict[str, datetime] = {}
        self._last = ""
        self._ended = False
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)

    @property
    def worker(self) -> psutil.Process:
        """The process that runs the consumers, of one worker."""
        (worker,) = psutil.Process(self.process.pid).children()
        return worker

    def started(self, count: int = 1) -> datetime:
        """Wait until this number of consumers have started; return when the first one did."""
        times: list[str] = []

        def enough() -> bool:
            times[:] = [e["timestamp"] for e in self._events if e["event"] == "consumer_started"]
            return len(times) >= count

        self._wait(enough)
        return datetime.fromisoformat(min(times))

    def reached(self, category: str, count: int) -> datetime:
        """Wait until this number of messages was read; return when that was committed."""
        self._wait(lambda: self._read[category] >= count)
        assert self._read[category] == count, f"{self._read[category]} of {count} in {category}"
        return self._reached[category]

    def read(self, category: str) -> int:
        """Return how many messages of a category were read and handled."""
        with self._changed:
            return self._read[category]

    def check(self) -> None:
        """Check that it still runs."""
        assert self.process.poll() is None, f"the consumers ended: {self._last}"

    def _wait(self, done: Callable[[], bool]) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: done() or self._ended, PATIENCE)
            assert came, f"nothing came in {PATIENCE} seconds"
            assert done(), f"the consumers ended: {self._last}"

    def _follow(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            logged = json.loads(line) if line.startswith("{") else None
            with self._changed:
                self._last = line
                if logged is not None and logged["event"] == "batch_committed":
                    self._read[logged["category"]] += logged["read"]
                    self._reached[logged["category"]] = datetime.fromisoformat(logged["timestamp"])
                elif logged is not None:
                    self._events.append(logged)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
