"""The consumers of a process, a thread for each, and what they share."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from consumers.archived import ArchivedMessages
from consumers.group.heartbeat import Heartbeat
from consumers.group.inspection.stored_positions import ConsumerId
from consumers.group.membership import LEASE, new_worker
from consumers.loop.consumer import Consumer
from consumers.loop.retrying.suspects import Suspects
from consumers.options import Options
from consumers.runtime.in_flight import InFlight
from consumers.runtime.observability.logs import Log
from consumers.runtime.observability.telemetry import Telemetry
from consumers.runtime.session import Session, durable
from consumers.runtime.shared_listening import SharedListening
from consumers.runtime.stopping import Stop
from reservation.app_path import app_in_errors
from reservation.component import Component
from reservation.store.notifications import Notices


@dataclass(frozen=True, slots=True)
class Part:
    """One consumer's own part of a process.

    Attributes:
        component: the component whose handlers decide.
        category: the category that is read.
        log: its logger.
        telemetry: what it reports.
        in_flight: the record of what it has in flight.
        app: the app path of the component, for errors; empty if there is none.
        archived: the category in an archive; None if only the store is read.
    """

    component: Component
    category: str
    log: Log
    telemetry: Telemetry = field(default_factory=Telemetry)
    in_flight: InFlight = field(default_factory=InFlight)
    app: str = ""
    archived: ArchivedMessages | None = None

    @property
    def consumer_id(self) -> ConsumerId:
        """The consumer, and the category that it reads."""
        return self.component.name, self.category


class Consumers:
    """All consumers of a process: when one ends, all do.

    One connection waits for notices of all their categories, and one renews their leases. Each
    consumer has its own for its batches.

    Attributes:
        failed: the part whose consumer was the first to fail; None if none did.
    """

    def __init__(
        self, parts: Sequence[Part], database_url: str, options: Options, stopping: Stop
    ) -> None:
        names = ",".join(dict.fromkeys(part.component.name for part in parts))
        self._parts = parts
        self._address = durable(database_url)
        self._options = options
        self._stopping = stopping
        self._listening = SharedListening(self._address, f"reservation {names} notices")
        self._heartbeat = Heartbeat(self._address, f"reservation {names} leases", LEASE)
        self._suspects = Suspects()
        self._worker = new_worker()
        self._threads: dict[threading.Thread, Part] = {}
        self._error: BaseException | None = None
        self.failed: Part | None = None

    def start(self) -> None:
        """Start a thread for each consumer."""
        for part in self._parts:
            # A program may end without waiting for the threads: what was not committed is rolled
            # back.
            thread = threading.Thread(
                target=self._run, args=[part], name=f"reservation {part.category}", daemon=True
            )
            self._threads[thread] = part
            thread.start()

    def join(self) -> None:
        """Wait until all have ended, and raise the first error."""
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def running(self) -> list[Part]:
        """Return the parts whose consumers have not ended."""
        return [part for thread, part in self._threads.items() if thread.is_alive()]

    def _run(self, part: Part) -> None:
        try:
            with app_in_errors(part.app):
                self._consume(part)
        except BaseException as error:  # noqa: BLE001  raised again by `join`
            if self._error is None:
                self._error, self.failed = error, part
        finally:
            self._stopping.request()

    def _consume(self, part: Part) -> None:
        """Consume a category until a stop is requested."""
        name = f"reservation {part.component.name} {part.category}"
        stop = self._stopping
        with Session(self._address, name, part.log, part.telemetry, until=stop) as session:
            if stop.requested:
                return
            with Notices(
                session.connection, self._address, part.category, listening=self._listening
            ) as notices:
                Consumer(
                    session,
                    part.component,
                    part.category,
                    self._options,
                    notices=notices,
                    telemetry=part.telemetry,
                    log=part.log,
                    in_flight=part.in_flight,
                    heartbeat=self._heartbeat,
                    suspects=self._suspects,
                    worker=self._worker,
                    archived=part.archived,
                ).run(stop)
