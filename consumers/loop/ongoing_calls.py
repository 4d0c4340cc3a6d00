"""Letting async calls go on between two batches, and while a consumer waits.

One of them may end the process, so they have their turn as a batch has
(`consumers.loop.retrying.suspects`).
"""

import time
from collections.abc import Callable, Collection, Set
from typing import Any

from psycopg import Connection

from consumers.calls.handler_call import guarded
from consumers.failures.letters import DeadLetters
from consumers.group.heartbeat import Lease
from consumers.group.positions import HeldPartitions
from consumers.loop.retrying.suspects import Suspects
from consumers.runtime.in_flight import SOME, InFlight
from consumers.runtime.running_calls import RunningCalls
from consumers.runtime.stopping import Stop

# Seconds for which a process with async calls that go on keeps partitions that are another's share.
KEEPS = 10.0


class OngoingCalls:
    """The calls of one consumer, while no batch runs.

    Attributes:
        keeps: seconds for which they keep partitions that are another's share.
    """

    def __init__(
        self,
        running: RunningCalls,
        in_flight: InFlight,
        suspects: Suspects,
        lease: Lease,
        dead_letters: DeadLetters,
        beat: Callable[[], None],
    ) -> None:
        self._running = running
        self._lease = lease
        self._in_flight = in_flight
        self._suspects = suspects
        self._dead_letters = dead_letters
        self._beat = beat
        self._gave_at = 0.0  # when partitions could last be given back
        self.keeps = KEEPS

    # Any: rows of different types.
    def run(
        self,
        connection: Connection[Any],
        stop: Stop,
        seconds: float,
        descriptors: Collection[int] = (),
    ) -> None:
        """Let them go on until one ends, a descriptor can be read, or the time is over."""
        if not self._running:
            return
        with self._lease, self._suspects.beside(stop, self._beat) as may_run:
            if not may_run:
                return
            self._in_flight.calls(SOME)
            try:
                with guarded(connection, ()):
                    self._running.loop.wait(descriptors, seconds)
            finally:
                self._in_flight.returned()

    def pause(self, connection: Connection[Any], stop: Stop) -> "CallsPause | Stop":
        """Return what to wait with."""
        return CallsPause(self, connection, stop) if self._running else stop

    @property
    def may_move(self) -> bool:
        """Whether partitions that are another's share may be given back."""
        now = time.monotonic()
        if not self._running:
            self._gave_at = now
        return not self._running or now - self._gave_at > self.keeps

    def forget(self) -> None:
        """Cancel all: another process may handle their messages."""
        self._running.forget()
        self._in_flight.runs(0)

    def forget_lost(
        self, connection: Connection[Any], positions: HeldPartitions, known: Set[tuple[int, int]]
    ) -> None:
        """Cancel those of partitions that are no longer held as they were known, or were taken."""
        kept = {number for number, _ in positions.claims & known}
        if streams := self._running.streams():
            found = self._dead_letters.partitions(connection, streams, positions.size)
            self._running.drop(at for at, partition in found.items() if partition not in kept)
            self._in_flight.runs(self._running.letters)


class CallsPause:
    """A wait in which calls go on; it ends when it is time to stop, or when a call has ended."""

    def __init__(self, calls: OngoingCalls, connection: Connection[Any], stop: Stop) -> None:
        self._calls = calls
        self._connection = connection
        self._stop = stop

    def wait(self, seconds: float, wake: int | None = None) -> bool:
        """Wait; return whether it is time to stop."""
        if not self._stop.wait(0):
            woken = () if wake is None else (wake,)
            self._calls.run(self._connection, self._stop, seconds, woken)
        return self._stop.requested
