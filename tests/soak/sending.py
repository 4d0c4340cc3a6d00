"""A sender that does not give up: it sends unacknowledged messages again with the same ids."""

import threading
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import psycopg

from bank.traffic import Traffic, in_batches
from reservation import MessageStore, Write
from reservation.errors import DatabaseUnavailableError
from tests.support.started import PATIENCE

PAUSE = 0.05  # seconds before the next attempt


class Sender:
    """Sends in a thread through every outage; `finish` sends the late reissues.

    Attributes:
        acknowledged: the ids of the commands whose writing was confirmed.
        failures: how often a write failed.
    """

    def __init__(self, database_url: str, traffic: Traffic, size: int = 5) -> None:
        self._database_url = database_url
        self._traffic = traffic
        self._batches = list(in_batches(traffic, traffic.accounts, size))
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._over = threading.Event()
        self.acknowledged: set[uuid.UUID] = set()
        self.failures = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(PATIENCE)

    def pause(self, seconds: float) -> None:
        """Let time pass while it sends, or until it has sent everything."""
        self._thread.join(seconds)

    def finish(self) -> None:
        """Wait until everything prompt is acknowledged."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the sender is not done"

    def send_late(self) -> None:
        """Send the reissues that come long after."""
        self._send([[write] for write in self._traffic.late])

    def _run(self) -> None:
        self._send(self._batches)

    def _send(self, batches: Sequence[Sequence[Write]]) -> None:
        left = list(reversed(batches))
        while left and not self._over.is_set():
            try:
                with psycopg.connect(self._database_url, autocommit=True) as connection:
                    store = MessageStore(connection)
                    while left and not self._over.is_set():
                        store.write_batch(left[-1])
                        self.acknowledged.update(write.id for write in left.pop() if write.id)
            except (DatabaseUnavailableError, psycopg.OperationalError):
                self.failures += 1
                self._over.wait(PAUSE)
