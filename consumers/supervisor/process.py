"""The process that all consumers of a host run in, a thread each."""

import os
import pickle
import socket
import sys

from consumers.failures.failure import Crashed
from consumers.loop.consuming import Consumers, Part
from consumers.runtime.garbage import spare_batches
from consumers.runtime.observability.logs import Log, configure_logs
from consumers.runtime.observability.telemetry import Telemetry
from consumers.runtime.stopping import Stop
from consumers.supervisor.assignment import Assignment
from consumers.supervisor.child import EndReason, Inherited, say
from consumers.supervisor.memory import Memory
from consumers.supervisor.stop_deadline import StopDeadline
from reservation.app_path import load_component
from reservation.errors import ReservationError
from reservation.raised import describe
from reservation.tracing import end_tracing

# Characters of the text in which a process reports to its host why it fails. The host reads it
# once the process has ended, so it must fit the pipe between them.
LONGEST_REASON = 4_000

# Seconds that a process that ends waits for the receiver of its traces.
EXPORTED_WITHIN = 2.0

# Seconds between two looks of the main thread, which only waits; whoever asks it to stop wakes it.
LOOK = 60.0


def main(descriptor: int) -> None:
    """Run the consumers that a host names through a pipe."""
    try:
        with os.fdopen(descriptor, "rb") as pipe:
            inherited: Inherited = pickle.load(pipe)  # noqa: S301  from our own host
    except (EOFError, pickle.UnpicklingError):
        sys.exit(1)  # the host has died meanwhile
    reports = None
    for number in (inherited.memory, inherited.failures, inherited.lives, inherited.host):
        os.set_inheritable(number, False)  # for what handlers execute
    if inherited.reports is not None:
        reports = socket.socket(fileno=inherited.reports)
        reports.set_inheritable(False)
    assignment = inherited.assignment
    memory = Memory(inherited.processes, assignment.consumer_ids, inherited.memory)
    failed = run_process(assignment, inherited.number, memory, inherited.host, reports)
    if isinstance(failed, EndReason):
        say(inherited.failures, failed)
    sys.exit(0 if failed is None else 1)


def run_process(
    assignment: Assignment,
    number: int,
    memory: Memory,
    host: int | None = None,
    report_to: socket.socket | None = None,
) -> EndReason | BaseException | None:
    """Run the consumers; return why they cannot go on, or what has crashed, or None.

    After a crash the host starts the process again.
    """
    with Stop(ends_process=True, also=host) as stop:
        configure_logs(level=assignment.options.log_level)
        process = _Process(assignment, stop)
        try:
            process.run(number, memory, report_to)
        except Crashed as error:
            process.log_crash(str(error), error)
            return error
        except ReservationError as error:
            if assignment.options.debug:
                Log(*process.failed).error("consumer_ended", error=str(error), exc_info=error)
            return EndReason(process.failed, str(error)[:LONGEST_REASON], error.is_about_data)
        except BaseException as error:  # noqa: BLE001  Python would print its traceback
            process.log_crash(f"Ended by {describe(error)}", error)
            return error
        return None


class _Process:
    """The consumers, from the import of their components to their end.

    Attributes:
        failed: the consumer that was the first to fail.
    """

    def __init__(self, assignment: Assignment, stop: Stop) -> None:
        self._assignment = assignment
        self._stop = stop
        self._consumers: Consumers | None = None
        self.failed = assignment.consumer_ids[0]

    def run(self, number: int, memory: Memory, report_to: socket.socket | None) -> None:
        """Run them until a stop is requested."""
        assignment = self._assignment
        with StopDeadline(self._stop, assignment.grace, self._left):
            components = [load_component(app, assignment.app_dir) for app in assignment.apps]
            by_name = {component.name: n for n, component in enumerate(components)}
            archives = None if assignment.archives is None else assignment.archives()
            spare_batches()
            parts = [
                Part(
                    components[by_name[consumer_id[0]]],
                    consumer_id[1],
                    Log(*consumer_id),
                    Telemetry(report_to, consumer_id),
                    memory.in_flight(number, consumer_id),
                    assignment.apps[by_name[consumer_id[0]]],
                    None if archives is None else archives.category(consumer_id[1]),
                )
                for consumer_id in assignment.consumer_ids
            ]
            # The host has seen the database. If it is unavailable now, that is an outage.
            self._consumers = Consumers(
                parts, assignment.database_url, assignment.options, self._stop
            )
            try:
                self._consumers.start()
                while not self._stop.wait(LOOK):
                    pass
                self._consumers.join()
            finally:
                if self._consumers.failed is not None:
                    self.failed = self._consumers.failed.consumer_id
                end_tracing(min(EXPORTED_WITHIN, assignment.grace / 2))

    def log_crash(self, text: str, error: BaseException) -> None:
        """Log what has ended a consumer."""
        trace = {"exc_info": error} if self._assignment.options.debug else {}
        Log(*self.failed).error("consumer_crashed", error=text, **trace)

    def _left(self) -> list[Log]:
        """Return the logs of those that have not ended."""
        if self._consumers is None:
            return [Log(*consumer_id) for consumer_id in self._assignment.consumer_ids]
        return [part.log for part in self._consumers.running()]
