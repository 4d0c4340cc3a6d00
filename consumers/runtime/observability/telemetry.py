"""A consumer's reports to the host of its process, if that has asked for them.

Each report is one datagram with the totals since the process began. So a lost report is made up for
by the next one, the last report of a killed process still counts, and a process never waits for its
supervisor to listen.
"""

import contextlib
import os
import socket
import time
from bisect import bisect_left
from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

# Seconds that a batch takes at most to be counted in each of the histogram's buckets; there is one
# more for those that take longer.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

# Seconds between two reports while there is nothing new but that the process is not stuck.
INTERVAL = 0.5

# Of the text that says why the database is unavailable.
LONGEST_REASON = 300

State = Literal["starting", "up", "degraded"]


def no_batches() -> list[int]:
    """Return the histogram's buckets, with none in any."""
    return [0] * (len(BUCKETS) + 1)


class ConsumerReport(msgspec.Struct, array_like=True):
    """The report of a consumer in a process, since its beginning.

    Attributes:
        pid: the process id.
        consumer: the component's name.
        category: the category that it reads.
        state: ``up`` if the database is there and the process is a member of its group,
            ``degraded`` from an error of the database until a batch has gone through again.
        reason: why it is degraded; empty if it is not.
        positions: that of each partition that it holds.
        head: the global position of the category's last message, when it last looked.
        counts: the number of messages by their outcome: handled, reserved, duplicate and so on.
        buckets: how many batches took up to each of the times in `BUCKETS`, and longer.
        seconds: how long all batches took together.
        errors: how many errors of the database it met that pass.
        scheduled: how many scheduled messages the store has, when it last counted them.
        overdue: for how many seconds the oldest of them was overdue, when it last looked.
        scheduled_written: how many scheduled messages it has written.
        scheduled_refused: how many attempts to write one the log has refused.
        waiting: how many messages of what it holds wait for their next attempt.
    """

    pid: int
    consumer: str = ""
    category: str = ""
    state: State = "starting"
    reason: str = ""
    positions: dict[int, int] = msgspec.field(default_factory=dict)
    head: int = 0
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    buckets: list[int] = msgspec.field(default_factory=no_batches)
    seconds: float = 0.0
    errors: int = 0
    scheduled: int = 0
    overdue: float = 0.0
    scheduled_written: int = 0
    scheduled_refused: int = 0
    waiting: int = 0


class Telemetry:
    """Reports that a consumer lives, and what it has done."""

    def __init__(
        self, supervisor: socket.socket | None = None, consumer_id: tuple[str, str] = ("", "")
    ) -> None:
        self._supervisor = supervisor
        self._report = ConsumerReport(os.getpid(), *consumer_id)
        self._reported_at = 0.0
        if supervisor is not None:
            supervisor.setblocking(False)

    def beat(self) -> None:
        """Report that the consumer is not stuck: it is in its loop, or at the next message."""
        if self._supervisor is not None and time.monotonic() - self._reported_at >= INTERVAL:
            self._send(self._supervisor)

    def holds(self, positions: Mapping[int, int], head: int) -> None:
        """Note that the consumer is a member of its group, and what it holds.

        One that was degraded stays so until `has_database`: it may read, and not write.
        """
        report = self._report
        changed = report.state == "starting" or report.positions.keys() != positions.keys()
        if report.state == "starting":
            report.state = "up"
        report.positions, report.head = dict(positions), head
        self._now_or_later(changed)

    def waits(self, number: int) -> None:
        """Note how many messages wait for their next attempt."""
        changed = self._report.waiting != number
        self._report.waiting = number
        self._now_or_later(changed)

    def has_database(self) -> None:
        """Note that the database works again."""
        self._report.state, self._report.reason = "up", ""
        self._now_or_later(True)

    def lacks_database(self, error: Exception) -> None:
        """Note that the database is unavailable or fails, and that the consumer waits for it."""
        self._report.errors += 1
        self._report.state, self._report.reason = "degraded", str(error)[:LONGEST_REASON]
        self._report.positions = {}
        self._now_or_later(True)

    def committed(
        self, counts: Mapping[str, int], seconds: float, set_aside: Mapping[int, str]
    ) -> None:
        """Note a batch, and the states of those of its messages that were set aside."""
        del set_aside
        counted = self._report.counts
        for outcome, count in counts.items():
            counted[outcome] = counted.get(outcome, 0) + count
        self._report.buckets[bisect_left(BUCKETS, seconds)] += 1
        self._report.seconds += seconds
        self._now_or_later(True)

    def retried(
        self,
        positions: Collection[int],
        counts: Mapping[str, int],
        set_aside: Mapping[int, str],
        of_calls: int,
    ) -> None:
        """Note messages that had been set aside, what became of them, and those set aside again.

        Of those that had only waited for their calls, what became is counted now.
        """
        del set_aside
        if of_calls:
            now = counts if of_calls == len(positions) else {"handled": of_calls}
            counted = self._report.counts
            for outcome, count in now.items():
                counted[outcome] = counted.get(outcome, 0) + count
            self._now_or_later(True)

    def scheduled(self, overdue: float, count: int | None = None) -> None:
        """Note what is scheduled in the store."""
        self._report.overdue = overdue
        if count is not None:
            self._report.scheduled = count

    def wrote_scheduled(self, written: int, refused: int) -> None:
        """Note that scheduled messages were due."""
        self._report.scheduled_written += written
        self._report.scheduled_refused += refused

    def _now_or_later(self, now: bool) -> None:
        if now and self._supervisor is not None:
            self._send(self._supervisor)
        else:
            self.beat()

    def _send(self, supervisor: socket.socket) -> None:
        self._reported_at = time.monotonic()
        with contextlib.suppress(OSError):  # the supervisor is slow to read, or gone
            supervisor.send(msgspec.msgpack.encode(self._report))
