"""The health of a supervisor's consumers: whether they live and work, and what they did."""

import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from consumers.group.inspection.stored_positions import ConsumerId
from consumers.runtime.observability.telemetry import ConsumerReport, no_batches
from reservation.messages.message import printable

_LARGEST = 1 << 18  # bytes of a report


@dataclass(slots=True)
class Life:
    """A consumer in a process.

    Attributes:
        consumer_id: the consumer and its category.
        report: its last report.
        heard_at: when that came, or the consumer was started, by the monotonic clock.
    """

    consumer_id: ConsumerId
    report: ConsumerReport
    heard_at: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class ConsumerCounts:
    """The counts of all processes of a consumer, ended ones included.

    Attributes:
        counts: as in `ConsumerReport`, as are the others.
        buckets: the same.
        seconds: the same.
        errors: the same.
        scheduled_written: the same.
        scheduled_refused: the same.
    """

    counts: Counter[str] = field(default_factory=Counter)
    buckets: list[int] = field(default_factory=no_batches)
    seconds: float = 0.0
    errors: int = 0
    scheduled_written: int = 0
    scheduled_refused: int = 0

    def add(self, other: "ConsumerReport | ConsumerCounts") -> None:
        """Add the counts of one process, or of several."""
        self.counts.update(other.counts)
        self.buckets = [
            mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)
        ]
        self.seconds += other.seconds
        self.errors += other.errors
        self.scheduled_written += other.scheduled_written
        self.scheduled_refused += other.scheduled_refused


class Board:
    """The reports of all consumers of a supervisor. Any thread may read them, one takes them in.

    Attributes:
        sender: the socket on which processes report.
    """

    def __init__(self, expected: Sequence[ConsumerId], stuck_after: float) -> None:
        self._expected = Counter(expected)
        self._stuck_after = stuck_after
        self._lives: dict[tuple[int, ConsumerId], Life] = {}
        self._past: defaultdict[ConsumerId, ConsumerCounts] = defaultdict(ConsumerCounts)
        self._failures: dict[ConsumerId, str] = {}
        self._lock = threading.Lock()
        self._receiver, self.sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._receiver.setblocking(False)

    def fileno(self) -> int:
        """Return what can be read once there is a report to take in."""
        return self._receiver.fileno()

    def close(self) -> None:
        """Close the sockets."""
        self._receiver.close()
        self.sender.close()

    def take_in(self) -> None:
        """Take in the reports that have come."""
        while True:
            try:
                data = self._receiver.recv(_LARGEST)
            except BlockingIOError:
                return
            report = msgspec.msgpack.decode(data, type=ConsumerReport)
            with self._lock:
                life = self._lives.get((report.pid, (report.consumer, report.category)))
                if life is not None:  # else its end was noted before
                    life.report, life.heard_at = report, time.monotonic()

    def started(self, pid: int, consumer_ids: Iterable[ConsumerId]) -> None:
        """Note that a process was started with these consumers."""
        with self._lock:
            for consumer_id in consumer_ids:
                self._lives[pid, consumer_id] = Life(consumer_id, ConsumerReport(pid, *consumer_id))

    def ended(self, pid: int) -> None:
        """Note that a process has ended; the last reports of its consumers count."""
        self.take_in()
        with self._lock:
            for key in [key for key in self._lives if key[0] == pid]:
                life = self._lives.pop(key)
                self._past[life.consumer_id].add(life.report)

    def failed(self, consumer_id: ConsumerId, reason: str) -> None:
        """Note why a consumer cannot go on; its supervisor is about to stop the others too."""
        with self._lock:
            self._failures[consumer_id] = reason

    def lives(self) -> list[Life]:
        """Return the consumers of the processes that run."""
        with self._lock:
            return list(self._lives.values())

    def counts(self) -> Mapping[ConsumerId, ConsumerCounts]:
        """Return the counts of each consumer."""
        counts: defaultdict[ConsumerId, ConsumerCounts] = defaultdict(ConsumerCounts)
        with self._lock:
            for consumer_id in self._expected:
                counts[consumer_id].add(self._past[consumer_id])
            for life in self._lives.values():
                counts[life.consumer_id].add(life.report)
        return counts

    def stuck(self) -> list[str]:
        """Name the consumers that gave no sign of life for too long."""
        now = time.monotonic()
        return [
            f"{_name(life)}: no sign of life for {now - life.heard_at:.0f} seconds"
            for life in self.lives()
            if now - life.heard_at > self._stuck_after
        ]

    def not_ready(self) -> list[str]:
        """Name the consumers that are not at work, each with the reason."""
        problems = [*self.stuck()]
        running: Counter[ConsumerId] = Counter()
        for life in self.lives():
            running[life.consumer_id] += 1
            if life.report.state != "up":
                problems.append(f"{_name(life)}: {life.report.state}{_why(life.report)}")
        with self._lock:
            failures = dict(self._failures)
        for consumer_id, expected in self._expected.items():
            name = " ".join(map(printable, consumer_id))
            if consumer_id in failures:
                problems.append(f"{name}: {printable(failures[consumer_id])}")
            if running[consumer_id] < expected:
                problems.append(f"{name}: {running[consumer_id]} of {expected} processes run")
        return problems


def _name(life: Life) -> str:
    return f"{' '.join(map(printable, life.consumer_id))} in process {life.report.pid}"


def _why(report: ConsumerReport) -> str:
    return f": {printable(report.reason)}" if report.reason else ""
