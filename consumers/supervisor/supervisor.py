"""The processes that a component's consumers run in, and their end.

One consumer runs in the process that was started. Several get a process each. The supervisor starts
them and forwards signals to them. It restarts a process that dies without reporting a reason,
because what one message does to a process is no reason to stop the others. It stops all of them
when one reports why it cannot go on, or dies repeatedly, so that a service manager sees the
failure. A consumer whose supervisor dies stops by itself. A consumer that does not stop in time
ends itself (`Grace`), and if it cannot do that either, the supervisor kills it.
"""

import contextlib
import multiprocessing
import signal
import socket
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from consumers.dead_letters.failure import Crashed
from consumers.group.membership import GroupShare
from consumers.loop.consuming import consume
from consumers.runtime.garbage import spare_batches
from consumers.runtime.observability.logs import Log, configure_logs
from consumers.runtime.observability.telemetry import Telemetry
from consumers.runtime.stopping import STOP_SIGNALS, Stop
from consumers.supervisor.grace import Grace
from consumers.supervisor.health import STUCK_AFTER, Board
from reservation.app_path import app_in_errors, load_component
from reservation.errors import ReservationError
from reservation.raised import describe
from reservation.tracing import end_tracing

# Of the text in which a consumer reports to the supervisor why it fails. The supervisor reads it
# once the consumer has ended, so it must fit the pipe between them.
LONGEST_REASON = 4_000

# A consumer that dies so often within so many seconds is not started again.
MOST_DEATHS = 5
WITHIN = 60.0

# Seconds beyond the grace that the supervisor leaves its consumers to end by themselves.
KILLED_AFTER = 5.0

# Seconds that a consumer that ends waits for the receiver of its traces.
EXPORTED_WITHIN = 2.0


class ConsumerFailed(ReservationError):
    """A consumer's process ended although it was not stopped."""

    def __init__(self, message: str, *, is_about_data: bool) -> None:
        super().__init__(message)
        self.is_about_data = is_about_data


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one consumer is to do; a process can be started with it.

    Attributes:
        app: the app path of the component.
        app_dir: the folder that the app path starts from.
        consumer: the component's name.
        category: the category to consume.
        database_url: the store's address; empty for libpq's own defaults.
        batch_size: how many messages to handle in one transaction.
        batch_bytes: how many bytes of their data and metadata; see `Batch`.
        log_level: the least severe level that is logged.
        grace: seconds that it may take to stop.
        share: which part of its group the consumer is to have.
        stop_on_error: whether it ends at a message that cannot be handled.
        keep_text: whether the text and the traceback of exceptions are kept with dead letters.
        debug: whether the tracebacks of exceptions are logged.
    """

    app: str
    app_dir: str
    consumer: str
    category: str
    database_url: str = field(repr=False)
    batch_size: int
    batch_bytes: int
    log_level: str
    grace: float
    share: GroupShare = field(default_factory=GroupShare)
    stop_on_error: bool = False
    keep_text: bool = False
    debug: bool = False

    @property
    def reads(self) -> tuple[str, str]:
        """The consumer, and the category that it reads."""
        return self.consumer, self.category


@dataclass(frozen=True, slots=True)
class Address:
    """Where the supervisor serves metrics and health checks.

    Attributes:
        host: the address or name.
        port: the port; 0 for any that is free.
    """

    host: str
    port: int


def run(assignments: Sequence[Assignment], answer_at: Address | None = None) -> None:
    """Run consumers until SIGTERM or SIGINT.

    A consumer that does not stop within its grace, or until a second signal, is ended; its batch is
    rolled back.
    """
    if answer_at is not None:
        _answering(assignments, answer_at)
    elif len(assignments) == 1:
        with Stop(ends_process=True) as stop:
            _consume(assignments[0], stop, Telemetry(), impatient=True)
    else:
        _Supervisor(assignments).run()


def _answering(assignments: Sequence[Assignment], address: Address) -> None:
    from consumers.supervisor.endpoint import Endpoint
    from consumers.supervisor.store_reader import StoreReader

    reads = [assignment.reads for assignment in assignments]
    longest = max(assignment.grace for assignment in assignments)
    board = Board(reads, max(longest, STUCK_AFTER))
    store = StoreReader(assignments[0].database_url, reads)
    with (
        contextlib.closing(board),
        Endpoint(address.host, address.port, board, store),
        store,
    ):
        _Supervisor(assignments, board).run()


def _consume(assignment: Assignment, stop: Stop, telemetry: Telemetry, *, impatient: bool) -> None:
    log = Log(*assignment.reads)
    with Grace(stop, assignment.grace, log, impatient=impatient):
        component = load_component(assignment.app, assignment.app_dir)
        spare_batches()
        try:
            # The supervisor has seen the database. If it is unavailable now, that is an outage.
            with app_in_errors(assignment.app):
                consume(
                    component,
                    assignment.category,
                    assignment.database_url,
                    stop,
                    batch_size=assignment.batch_size,
                    batch_bytes=assignment.batch_bytes,
                    share=assignment.share,
                    stop_on_error=assignment.stop_on_error,
                    telemetry=telemetry,
                    log=log,
                    grace=assignment.grace,
                    keep_text=assignment.keep_text,
                    debug=assignment.debug,
                )
        finally:
            end_tracing(min(EXPORTED_WITHIN, assignment.grace / 2))


class _Supervisor:
    """The consumers' processes, from their start to the end of the last."""

    def __init__(self, assignments: Sequence[Assignment], board: Board | None = None) -> None:
        self._assignments = assignments
        self._board = board
        self._running: dict[SpawnProcess, tuple[Assignment, Connection]] = {}
        self._deaths: defaultdict[Assignment, deque[float]] = defaultdict(
            lambda: deque(maxlen=MOST_DEATHS)
        )
        self._killed: set[SpawnProcess] = set()
        self._signals = 0
        self._stopping = False
        self._failure: ReservationError | None = None

    def run(self) -> None:
        resource_tracker.ensure_running()  # starting it unblocks signals, so not in between
        handlers = dict.fromkeys(STOP_SIGNALS, self._on_signal)
        handlers[signal.SIGALRM] = self._kill_all
        previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            for assignment in self._assignments:
                self._start(assignment)
            while self._running:
                watched = [process.sentinel for process in self._running]
                if self._board is not None:
                    watched.append(self._board.fileno())
                ended = wait(watched)
                if self._board is not None:
                    self._board.take_in()
                for process in [running for running in self._running if running.sentinel in ended]:
                    self._end(process)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for process in self._running:  # after an error while starting them or waiting
                process.terminate()
                process.join()
            for number, handler in previous.items():
                signal.signal(number, handler)
        if self._failure is not None:
            raise self._failure

    def _start(self, assignment: Assignment) -> None:
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        report_to = None if self._board is None else self._board.sender
        process = context.Process(target=_process, args=(assignment, sender, report_to))
        # Both this process and the new one, which inherits that, take no signal until each is
        # ready to act on it.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            process.start()
            self._running[process] = (assignment, receiver)
            if self._board is not None and process.pid is not None:
                self._board.started(process.pid, assignment.reads)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        sender.close()
        if self._stopping:
            process.terminate()

    def _end(self, process: SpawnProcess) -> None:
        """Handle the end of a process."""
        process.join()
        assignment, receiver = self._running.pop(process)
        if self._board is not None and process.pid is not None:
            self._board.ended(process.pid)
        if process not in self._killed and (process.exitcode != 0 or not self._stopping):
            self._replace(assignment, _reason(receiver), process.exitcode)
        receiver.close()

    def _replace(
        self, assignment: Assignment, reason: tuple[str, bool] | None, exit_code: int | None
    ) -> None:
        """Restart a consumer that died, or stop all because it cannot go on."""
        log = Log(*assignment.reads)
        if reason is None:
            code = exit_code or 0
            how = f"by signal {-code}" if code < 0 else f"status {code}"
            deaths = self._deaths[assignment]
            often = len(deaths) == MOST_DEATHS and time.monotonic() - deaths[0] < WITHIN
            if not often and not self._stopping:
                deaths.append(time.monotonic())
                log.error("consumer_died", how=how)
                self._start(assignment)
                return
            text = (
                f"The consumer of {assignment.category} ended unexpectedly ({how}); what it had "
                f"not committed is read again at the next start"
            )
            reason = text, True
        if self._board is not None:
            self._board.failed(assignment.reads, reason[0])
        if self._failure is None:
            self._failure = ConsumerFailed(reason[0], is_about_data=reason[1])
            self._stop_all()
            log.error("consumer_failed", error=str(self._failure))

    def _on_signal(self, *_: object) -> None:
        self._signals += 1
        if self._signals > 1:
            self._kill_all()
        self._stop_all()

    def _stop_all(self) -> None:
        if not self._stopping:
            self._stopping = True
            longest = max(assignment.grace for assignment in self._assignments)
            signal.setitimer(signal.ITIMER_REAL, longest + KILLED_AFTER)
        for process in list(self._running):
            process.terminate()

    def _kill_all(self, *_: object) -> None:
        """End the processes without waiting; the server rolls back what they have in hand."""
        for process, (assignment, _receiver) in list(self._running.items()):
            if process not in self._killed:
                self._killed.add(process)
                process.kill()
                Log(*assignment.reads).warning("batch_abandoned")


def _process(assignment: Assignment, failures: Connection, report_to: socket.socket | None) -> None:
    """Run one consumer in a process of its own, and report to the supervisor why it fails.

    After a crash nothing is reported, and the supervisor restarts the consumer.
    """
    with Stop(ends_process=True) as stop:
        configure_logs(level=assignment.log_level)
        try:
            _consume(assignment, stop, Telemetry(report_to), impatient=False)  # its supervisor is
        except Crashed as error:
            Log(*assignment.reads).error(
                "consumer_crashed", error=str(error), **_traceback(assignment, error)
            )
        except ReservationError as error:
            if assignment.debug:
                Log(*assignment.reads).error("consumer_ended", error=str(error), exc_info=error)
            failures.send((str(error)[:LONGEST_REASON], error.is_about_data))
        except BaseException as error:  # noqa: BLE001  multiprocessing would print its traceback
            text = f"Ended by {describe(error)}"
            Log(*assignment.reads).error(
                "consumer_crashed", error=text, **_traceback(assignment, error)
            )
        else:
            return
        raise SystemExit(1)


def _traceback(assignment: Assignment, error: BaseException) -> dict[str, BaseException]:
    """Return the field that gives an event a traceback, if that is asked for."""
    return {"exc_info": error} if assignment.debug else {}


def _reason(receiver: Connection) -> tuple[str, bool] | None:
    """Return why a consumer could not go on, and whether a message is the reason."""
    try:
        message, is_about_data = receiver.recv()
    except EOFError:
        return None
    return message, is_about_data
