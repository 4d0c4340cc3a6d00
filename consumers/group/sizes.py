"""Partition counts of categories, checked before consumers start."""

from collections.abc import Sequence
from typing import Any

from psycopg import Connection

from consumers.group.inspection.stored_positions import StoredPosition, read_positions, reads_of
from reservation.component import Component
from reservation.maintenance.entity_order import check_order, check_waiting


def checked_sizes(
    connection: Connection[Any],
    component: Component,
    categories: Sequence[str],
    partitions: int | None,
) -> dict[str, int]:
    """Return how many partitions each category has, or will have."""
    positions: dict[str, list[StoredPosition]] = {name: [] for name in categories}
    for position in read_positions(connection, reads_of(component)):
        if position.category in positions and position.updated_at is not None:
            positions[position.category].append(position)
    sizes = {}
    for category, stored in positions.items():
        size = stored[0].partitions if stored else partitions or 1
        check_order(component, category, size)
        after = min((each.position for each in stored), default=0)
        check_waiting(connection, component, category, size, after)
        sizes[category] = size
    return sizes
