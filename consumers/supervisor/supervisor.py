"""The processes that consumers run in, and their end.

A host starts processes, each with all consumers, and forwards signals to them. It replaces a
process that dies without reporting why, or that has a stuck handler, and hands on what its
consumers had in flight: one message that ends a process must not stop the others. It stops all of
them if one reports why it cannot go on, or dies again and again with the same messages in flight,
or with none, so that a service manager sees the failure. A process whose host dies stops by itself.
One that does not stop in time ends itself (`StopDeadline`); if it cannot, the host kills it.
"""

import contextlib
import os
import signal
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

import structlog

from consumers.group.inspection.stored_positions import ConsumerId
from consumers.runtime.in_flight import Record
from consumers.runtime.observability.logs import Log
from consumers.runtime.stopping import STOP_SIGNALS
from consumers.supervisor.assignment import Assignment
from consumers.supervisor.child import Child, EndReason
from consumers.supervisor.health import Board
from consumers.supervisor.memory import Memory
from consumers.supervisor.stuck import LOOK, Stuck
from reservation.errors import ReservationError
from reservation.waiting import readable

# A process that dies so often within so many seconds, with the same in flight, is not restarted.
MOST_DEATHS = 5
WITHIN = 60.0

# Seconds beyond the grace that the host leaves its processes to end by themselves.
KILLED_AFTER = 5.0


class ConsumerFailed(ReservationError):
    """A consumer ended although it was not stopped."""

    def __init__(self, message: str, *, is_about_data: bool) -> None:
        super().__init__(message)
        self.is_about_data = is_about_data


@dataclass(frozen=True, slots=True)
class Address:
    """The address of metrics and health checks.

    Attributes:
        host: the address or name.
        port: the port; 0 for any that is free.
    """

    host: str
    port: int


def run(assignment: Assignment, workers: int = 1, answer_at: Address | None = None) -> None:
    """Run consumers in so many processes until SIGTERM or SIGINT.

    What does not stop within its grace, or until a second signal, is ended; its batch is rolled
    back.
    """
    if answer_at is None:
        _Host(assignment, workers).run()
        return
    from consumers.supervisor.endpoint import Endpoint
    from consumers.supervisor.store_reader import StoreReader

    stuck_after = max(assignment.grace, assignment.options.stuck_after)
    board = Board(assignment.consumer_ids * workers, stuck_after)
    store = StoreReader(assignment.database_url, assignment.consumer_ids)
    with (
        contextlib.closing(board),
        Endpoint(answer_at.host, answer_at.port, board, store),
        store,
    ):
        _Host(assignment, workers, board).run()


class _Host:
    """The processes, from their start to the end of the last."""

    def __init__(self, assignment: Assignment, workers: int, board: Board | None = None) -> None:
        self._assignment = assignment
        self._workers = workers
        self._board = board
        self._memory = Memory(workers, assignment.consumer_ids)
        # The processes have the reading end of this pipe, which shows that their host has died.
        self._host_read, self._host_write = os.pipe()
        self._running: dict[Child, Stuck] = {}
        self._deaths: defaultdict[object, deque[float]] = defaultdict(
            lambda: deque(maxlen=MOST_DEATHS)
        )
        self._replaced: dict[Child, ConsumerId] = {}  # with the consumer that is stuck
        self._killed: set[Child] = set()
        self._signals = 0
        self._stopping = False
        self._failure: ReservationError | None = None

    def run(self) -> None:
        handlers = dict.fromkeys(STOP_SIGNALS, self._on_signal)
        handlers[signal.SIGALRM] = self._kill_all
        previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            for number in range(self._workers):
                self._start(number)
            while self._running:
                self._wait()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for child in self._running:  # after an error while starting them or waiting
                child.ask_to_stop()
                child.wait()
            for number, handler in previous.items():
                signal.signal(number, handler)
            os.close(self._host_read)
            os.close(self._host_write)
        if self._failure is not None:
            raise self._failure

    def _wait(self) -> None:
        """Wait until something happens, and act on it."""
        watched: list[Child | Board] = list(self._running)
        if self._board is not None:
            watched.append(self._board)
        readable([source.fileno() for source in watched], LOOK)
        if self._board is not None:
            self._board.take_in()
        for child, stuck in list(self._running.items()):
            if child.has_ended:
                self._end(child)
            elif not self._stopping and child not in self._replaced:
                self._replace_if_stuck(child, stuck)

    def _start(self, number: int) -> None:
        report_to = None if self._board is None else self._board.sender
        child = Child(
            self._assignment, number, self._workers, self._memory, self._host_read, report_to
        )
        self._running[child] = Stuck(self._assignment.options.stuck_after)
        if self._board is not None:
            self._board.started(child.pid, self._assignment.consumer_ids)
        if self._stopping:
            child.ask_to_stop()

    def _replace_if_stuck(self, child: Child, stuck: Stuck) -> None:
        """Kill a process one of whose handlers is stuck; it is replaced once it has ended."""
        for consumer_id, record in stuck.among(self._memory.records(child.number)):
            Log(*consumer_id).error(
                "consumer_stuck",
                seconds=self._assignment.options.stuck_after,
                **_in_flight(record),
            )
            self._replaced[child] = consumer_id
            child.kill()
            return

    def _end(self, child: Child) -> None:
        """Handle the end of a process."""
        reason = child.wait()
        del self._running[child]
        if self._board is not None:
            self._board.ended(child.pid)
        if child not in self._killed and (child.exit_code != 0 or not self._stopping):
            self._replace(child, reason)

    def _replace(self, child: Child, reason: EndReason | None) -> None:
        """Restart a process that died, or stop all because it cannot go on."""
        if reason is None:
            code = child.exit_code
            how = f"by signal {-code}" if code < 0 else f"status {code}"
            in_flight = {
                consumer_id: record
                for consumer_id, record in self._memory.records(child.number)
                if record.was_read
            }
            stuck = self._replaced.pop(child, None)
            if not self._stopping and self._may_start_again(in_flight):
                structlog.get_logger().error(
                    "process_died",
                    how=how,
                    in_flight=[
                        {"consumer": consumer, "category": category, **_in_flight(record)}
                        for (consumer, category), record in in_flight.items()
                    ],
                )
                self._memory.hand_on(child.number, stuck)
                self._start(child.number)
                return
            consumer_id = next(iter(in_flight), self._assignment.consumer_ids[0])
            reason = EndReason(consumer_id, _why(how, in_flight), is_about_data=True)
        if self._board is not None:
            self._board.failed(reason.consumer_id, reason.text)
        if self._failure is None:
            self._failure = ConsumerFailed(reason.text, is_about_data=reason.is_about_data)
            self._stop_all()
            Log(*reason.consumer_id).error("consumer_failed", error=reason.text)

    def _may_start_again(self, in_flight: dict[ConsumerId, Record]) -> bool:
        """Note a death; return whether there were few like it.

        If a message was handled by itself, its counted attempts are the limit.
        """
        if len(in_flight) == 1 and all(record.counted for record in in_flight.values()):
            return True
        since = time.monotonic() - WITHIN
        for key in [key for key, times in self._deaths.items() if times[-1] < since]:
            del self._deaths[key]
        deaths = self._deaths[frozenset((id_, record.first) for id_, record in in_flight.items())]
        too_often = len(deaths) == MOST_DEATHS and deaths[0] > since
        deaths.append(time.monotonic())
        return not too_often

    def _on_signal(self, *_: object) -> None:
        self._signals += 1
        if self._signals > 1:
            self._kill_all()
        self._stop_all()

    def _stop_all(self) -> None:
        if not self._stopping:
            self._stopping = True
            signal.setitimer(signal.ITIMER_REAL, self._assignment.grace + KILLED_AFTER)
        for child in list(self._running):
            child.ask_to_stop()

    def _kill_all(self, *_: object) -> None:
        """End the processes without waiting; the server rolls back what they have in flight."""
        for child in list(self._running):
            if child not in self._killed:
                self._killed.add(child)
                records = list(self._memory.records(child.number))
                child.kill()
                for consumer_id, record in records:
                    if record.was_read:
                        Log(*consumer_id).warning("batch_abandoned")


# Any: what JSON has a form for.
def _in_flight(record: Record) -> dict[str, Any]:
    """Return the fields that log what a consumer had in flight."""
    called = {"global_position": record.called} if record.called > 0 else {}
    running = {"running": record.running} if record.running else {}
    return {"first": record.first, "last": record.last, **called, **running}


def _why(how: str, in_flight: dict[ConsumerId, Record]) -> str:
    whose = ", ".join(category for _, category in in_flight)
    what = f" with messages of {whose} in flight" if whose else ""
    return (
        f"The process of the consumers ended unexpectedly ({how}){what}; what was not committed is "
        f"read again at the next start"
    )
