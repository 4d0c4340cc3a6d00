"""The eventsourcing library: a projection that answers each event with one of its own.

The event and the tracking record commit in one transaction. Each event begins an aggregate, so none
is loaded. All settings are the defaults.
"""

import os
import time
from uuid import NAMESPACE_URL, UUID, uuid5

from eventsourcing.application import Application, ProcessingEvent
from eventsourcing.domain import Aggregate, DomainEventProtocol
from eventsourcing.projection import EventSourcedProjection, EventSourcedProjectionRunner

from benchmarks.peers.workers.timing import report

SETTINGS = {
    "PERSISTENCE_MODULE": "eventsourcing.postgres",
    "POSTGRES_HOST": os.environ["PGHOST"],
    "POSTGRES_PORT": "5432",
    "POSTGRES_USER": os.environ["PGUSER"],
    "POSTGRES_PASSWORD": "-",  # it wants one, the server does not
    "POSTGRES_DBNAME": os.environ["PGDATABASE"],
}
SENT = 500  # in one call
PATIENCE = 200.0  # seconds


class Sent(Aggregate):
    """A command, as the event that began it."""


class Done(Aggregate):
    """The effect of a command."""

    def __init__(self, command: UUID) -> None:
        self.command = command

    @staticmethod
    def create_id(command: UUID) -> UUID:
        """Return the same id for the same command."""
        return uuid5(NAMESPACE_URL, str(command))


class Commands(Application[UUID]):
    """What is sent."""


class Effects(EventSourcedProjection[UUID]):
    """What is done about it."""

    def policy(
        self, domain_event: DomainEventProtocol[UUID], processing_event: ProcessingEvent[UUID]
    ) -> None:
        """Answer each command with an event."""
        if isinstance(domain_event, Sent.Created):
            processing_event.collect_events(Done(domain_event.originator_id))


def send(count: int) -> None:
    """Install the tables of both applications and save commands."""
    Effects(SETTINGS).close()
    with Commands(SETTINGS) as app:
        for _ in range(count // SENT):
            app.save(*[Sent() for _ in range(SENT)])


def work(_: int) -> None:
    """Process all that was sent."""
    with Commands(SETTINGS) as app:
        last = app.recorder.max_notification_id()
    start = time.time()
    with EventSourcedProjectionRunner(
        application_class=Commands, projection_class=Effects, env=SETTINGS
    ) as runner:
        runner.wait(last, timeout=PATIENCE)
        report(start)
