"""The processes that a component's consumers run in, and their end.

One consumer runs in the process that was started. Several get a process each: the host starts
them, hands a signal on to them, and stops all when one of them fails, so that whoever supervises
the host sees the failure. A consumer whose host dies stops by itself.
"""

import multiprocessing
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import structlog
from psycopg import IsolationLevel, sql

from consumers.consumer import Consumer
from consumers.logs import configure_logs
from consumers.stopping import STOP_SIGNALS, Stop
from reservation.app_path import load_component
from reservation.errors import MessageError, PositionLostError, ReservationError
from reservation.store.connection import connect
from reservation.store.install import check_installed

# Of the text with which a consumer tells its host why it fails. The host reads it once the consumer
# has ended, so it must fit the pipe between them.
LONGEST_REASON = 4_000

# How long a consumer waits for a lock before it looks whether it is to stop, and tries again.
LOCK_TIMEOUT = "1s"


class ConsumerFailed(ReservationError):
    """A consumer's process ended without having been told to.

    Attributes:
        could_not_run: whether something kept it from running, rather than a message or its being
            taken over.
    """

    def __init__(self, message: str, *, could_not_run: bool = False) -> None:
        super().__init__(message)
        self.could_not_run = could_not_run


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one consumer is to do; a process can be started with it.

    Attributes:
        app: the app path of the component.
        app_dir: the folder that the app path starts from.
        consumer: the component's name.
        category: the category to consume.
        database_url: the store's address; empty for libpq's own defaults.
        batch_size: how many messages to deal with in one transaction.
        log_level: the least severe level that is logged.
    """

    app: str
    app_dir: str
    consumer: str
    category: str
    database_url: str = field(repr=False)
    batch_size: int
    log_level: str


def run(assignments: Sequence[Assignment]) -> None:
    """Run consumers until SIGTERM or SIGINT.

    Raises:
        ReservationError: a consumer can not go on; its position is before what stopped it.
    """
    if len(assignments) == 1:
        with Stop() as stop:
            _consume(assignments[0], stop)
    else:
        _run_processes(assignments)


def _consume(assignment: Assignment, stop: Stop) -> None:
    component = load_component(assignment.app, assignment.app_dir)
    name = f"reservation {component.name} {assignment.category}"
    with connect(assignment.database_url, application_name=name, autocommit=True) as connection:
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        check_installed(connection)
        connection.execute(sql.SQL("SET lock_timeout = {}").format(LOCK_TIMEOUT))
        connection.execute("SET statement_timeout = 0")  # a batch takes as long as it takes
        Consumer(connection, component, assignment.category, batch_size=assignment.batch_size).run(
            stop
        )


def _run_processes(assignments: Sequence[Assignment]) -> None:
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # starting it unblocks signals, so not in between
    running: dict[SpawnProcess, tuple[Assignment, Connection]] = {}
    stopping = False

    def stop_all(*_: object) -> None:
        nonlocal stopping
        stopping = True
        for process in running:
            process.terminate()

    previous = {number: signal.signal(number, stop_all) for number in STOP_SIGNALS}
    failure: ReservationError | None = None
    try:
        for assignment in assignments:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_process, args=(assignment, sender))
            # Both this process and the new one, which inherits that, take no signal until each is
            # ready to act on it.
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            try:
                process.start()
                running[process] = (assignment, receiver)
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            sender.close()
            if stopping:
                stop_all()
        while running:
            ended = wait([process.sentinel for process in running])
            for process in [one for one in running if one.sentinel in ended]:
                process.join()
                assignment, receiver = running.pop(process)
                if failure is None and (process.exitcode != 0 or not stopping):
                    failure = _failure(assignment, receiver, process.exitcode)
                    stop_all()
                    structlog.get_logger().error(
                        "consumer_failed",
                        consumer=assignment.consumer,
                        category=assignment.category,
                        error=str(failure),
                    )
                receiver.close()
    finally:
        for process in running:  # where one could not be started, or waiting for them failed
            process.terminate()
            process.join()
        for number, handler in previous.items():
            signal.signal(number, handler)
    if failure is not None:
        raise failure


def _process(assignment: Assignment, failures: Connection) -> None:
    """Run one consumer in a process of its own, telling the host why it fails if it does."""
    with Stop() as stop:
        configure_logs(level=assignment.log_level)
        try:
            _consume(assignment, stop)
        except (MessageError, PositionLostError) as error:
            failures.send((str(error)[:LONGEST_REASON], False))
            raise SystemExit(1) from None
        except ReservationError as error:
            failures.send((str(error)[:LONGEST_REASON], True))
            raise SystemExit(1) from None


def _failure(assignment: Assignment, reason: Connection, exit_code: int | None) -> ConsumerFailed:
    try:
        message, could_not_run = reason.recv()
        return ConsumerFailed(message, could_not_run=could_not_run)
    except EOFError:
        how = f"by signal {-exit_code}" if exit_code and exit_code < 0 else f"status {exit_code}"
        return ConsumerFailed(
            f"The consumer of {assignment.category} ended unexpectedly ({how}); what it had not "
            f"committed is read again at the next start"
        )
