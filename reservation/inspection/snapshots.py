"""Snapshots that the code of a declaration will not use."""

from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.inspection")

# So many of the store's snapshots are looked at.
MOST_COUNTED = 100_000


@dataclass(frozen=True, slots=True)
class SnapshotCount:
    """The snapshots of a component's entities.

    Attributes:
        snapshots: how many were found.
        discarded: how many of them other code has made, so that they are not used.
        at_least: whether there may be more that were not looked at.
    """

    snapshots: int
    discarded: int
    at_least: bool


def count_snapshots(connection: Connection[Any], component: Component[Any]) -> SnapshotCount | None:
    """Count a component's snapshots; None if it keeps none."""
    snapshots = declarations(component).snapshots(connection)
    if snapshots is None:
        return None
    values = {
        "category": component.name,
        "revision": snapshots.revision,
        "limit": MOST_COUNTED,
    }
    with translated():
        rows = connection.execute(_QUERIES["snapshots"], values).fetchall()
    return SnapshotCount(*rows[0])
