"""An embedded PostgreSQL of one test's own, whose flushes take longer or can be held."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.slow_disk import inherited, slow_disk
from tests.support.servers import OwnServer


class SlowServer:
    """An `OwnServer` on a slow disk; it needs a C compiler.

    Attributes:
        address: where it is, whenever it runs.
    """

    def __init__(self, folder: Path, milliseconds: int = 0) -> None:
        self._gate = folder / "gate"
        self._environment = slow_disk(folder, milliseconds)
        with inherited(self._environment):
            self._server = OwnServer(folder / "postgres")
        self.address = self._server.address

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold every flush for a block."""
        self._gate.touch()
        try:
            yield
        finally:
            self._gate.unlink(missing_ok=True)

    def crash(self) -> None:
        """Stop it immediately, and start it again."""
        self._server.crash()
        self._gate.unlink(missing_ok=True)
        with inherited(self._environment):
            self._server.start()

    def close(self) -> None:
        """Stop it for good."""
        self._gate.unlink(missing_ok=True)
        self._server.close()
