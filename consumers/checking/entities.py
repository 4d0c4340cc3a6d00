"""The cost of copying an entity, paid for each message that a handler is called for."""

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from psycopg import Connection

from consumers.checking.report import CheckFinding, CheckKind
from consumers.handling.entity_copies import HINT, SLOW
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.entity.projection import Loaded
from reservation.errors import ReservationError
from reservation.handlers.copying import copied
from reservation.inspection.sampling import longest_stream
from reservation.messages.message import printable
from reservation.store.client import MessageStore

# So many events of one stream are read at most.
MOST_EVENTS = 20_000

_TIMES = 3


def findings_of_entities(
    connection: Connection[Any], component: Component[Any]
) -> Iterator[CheckFinding]:
    """Give the entity with the longest stream among the newest events, if its copy takes long."""
    declared = declarations(component)
    if component.entity is None or not declared.loads_entities:
        return
    longest = longest_stream(connection, component.name)
    if longest is None:
        return
    loaded = Loaded(component.entity())
    try:
        for event in islice(MessageStore(connection).read_stream(longest), MOST_EVENTS):
            loaded.entity = declared.projection.apply_stored(loaded.entity, event)
            loaded.version = event.position
        seconds = min(_timed(loaded.entity) for _ in range(_TIMES))
    except ReservationError:  # which is found for its type
        return
    if seconds >= SLOW:
        yield CheckFinding(
            CheckKind.ENTITIES,
            "note",
            component.name,
            printable(longest),
            loaded.version + 1,
            f"after {loaded.version + 1:,} events a copy of the {component.entity.__name__} takes "
            f"{seconds * 1000:.1f} ms, and each call of a handler makes one",
            HINT,
        )


def _timed(entity: object) -> float:
    """Return how many seconds a copy takes."""
    began = time.perf_counter()
    copied(entity)
    return time.perf_counter() - began
