"""One consumer with what it works on: a connection, notices of new messages, and the loop."""

from consumers.batch.batch_size import DEFAULT_BATCH_BYTES
from consumers.group.membership import GroupShare
from consumers.loop.consumer import Consumer
from consumers.runtime.observability.logs import Log
from consumers.runtime.observability.telemetry import Telemetry
from consumers.runtime.session import Session
from consumers.runtime.stopping import Stop
from reservation.component import Component
from reservation.store.notifications import Notices


def consume(
    component: Component,
    category: str,
    database_url: str,
    stop: Stop,
    *,
    batch_size: int,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    share: GroupShare = GroupShare(),  # noqa: B008  it is frozen
    stop_on_error: bool = False,
    telemetry: Telemetry | None = None,
    log: Log,
    grace: float | None = None,
    keep_text: bool = False,
    debug: bool = False,
) -> None:
    """Consume a category until told to stop."""
    name = f"reservation {component.name} {category}"
    with Session(database_url, name, log, telemetry, until=stop) as session:
        if stop.requested:
            return
        with Notices(
            session.connection, session.address, category, application_name=name
        ) as notices:
            Consumer(
                session,
                component,
                category,
                batch_size=batch_size,
                batch_bytes=batch_bytes,
                share=share,
                stop_on_error=stop_on_error,
                notices=notices,
                telemetry=telemetry,
                log=log,
                grace=grace,
                keep_text=keep_text,
                debug=debug,
            ).run(stop)
