"""Letting async calls go on between two batches, and while a consumer waits.

One of them may end the process, so they wait for their turn as a batch does
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

# Seconds for which a process with running calls keeps partitions that another process waits for.
KEEPS = 10.0


class OngoingCalls:
    """The calls of one consumer, while no batch runs.

    Attributes:
        keeps: seconds for which they keep partitions that another process waits for.
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
        self._released_at = 0.0  # when partitions could last be given back
        self.keeps = KEEPS

    # Any: rows of different types.
    def run(
        self,
        connection: Connection[Any],
        stop: Stop,
        seconds: float,
        descriptors: Collection[int] = (),
    ) -> None:
        """Let the calls go on until one ends, a descriptor can be read, or the time is over."""
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
        """Return what the consumer waits with, so that its calls go on if it has any."""
        return CallsPause(self, connection, stop) if self._running else stop

    @property
    def may_release(self) -> bool:
        """Whether partitions that another process waits for may be given back."""
        now = time.monotonic()
        if not self._running:
            self._released_at = now
        return not self._running or now - self._released_at > self.keeps

    def forget(self) -> None:
        """Cancel all: another process may handle their messages."""
        self._running.forget()
        self._in_flight.runs(0)

    def forget_lost(
        self, connection: Connection[Any], positions: HeldPartitions, former: Set[tuple[int, int]]
    ) -> None:
        """Cancel the calls for partitions that are held by none of the former claims."""
        kept = {number for number, _ in positions.claims & former}
        if streams := self._running.streams():
            partitions = self._dead_letters.partitions(connection, streams, positions.size)
            self._running.drop(position for position, n in partitions.items() if n not in kept)
            self._in_flight.runs(self._running.letters)


class CallsPause:
    """A wait in which calls go on; it ends when one has ended, or it is time to stop."""

    def __init__(self, calls: OngoingCalls, connection: Connection[Any], stop: Stop) -> None:
        self._calls = calls
        self._connection = connection
        self._stop = stop

    def wait(self, seconds: float, wake: int | None = None) -> bool:
        """Wait; return whether it is time to stop."""
        if not self._stop.wait(0):
            descriptors = () if wake is None else (wake,)
            self._calls.run(self._connection, self._stop, seconds, descriptors)
        return self._stop.requested
