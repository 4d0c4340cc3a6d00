"""The groups of a component: positions, partitions and members that do not fit its declaration."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from psycopg import Connection

from consumers.checking.report import CheckFinding, CheckKind
from consumers.group.compatibility import GUIDE, living_differences
from consumers.group.inspection.status import PartitionStatus, of_stored
from consumers.group.inspection.stored_positions import StoredPosition, categories, read_positions
from reservation.component import Component
from reservation.errors import GroupError
from reservation.inspection.process_declaration import ProcessDeclaration
from reservation.maintenance.entity_order import check_order, check_waiting


def findings_of_positions(
    connection: Connection[Any], component: Component[Any], app: str
) -> Iterator[CheckFinding]:
    """Give positions and partitions that do not fit, also those of categories no longer read."""
    groups: dict[str, list[StoredPosition]] = defaultdict(list)
    for stored in read_positions(connection):
        if stored.consumer == component.name:
            groups[stored.category].append(stored)
    read = categories(component)
    for category, rows in groups.items():
        yield from _foreign(category, rows, app)
        if len(rows) != rows[0].partitions:
            yield CheckFinding(
                CheckKind.PARTITIONS,
                "finding",
                category,
                None,
                None,
                f"{rows[0].partitions} partitions, and positions of {len(rows)}",
                "restore reservation.leases and reservation.moves from a backup",
            )
        elif category not in read:
            yield from _left(connection, component, category, rows)
        else:
            yield from _out_of_order(connection, component, category, rows)


def _foreign(category: str, rows: Sequence[StoredPosition], app: str) -> Iterator[CheckFinding]:
    highest = max((row.position for row in rows if row.foreign), default=None)
    if highest is not None:
        yield CheckFinding(
            CheckKind.POSITIONS,
            "finding",
            category,
            None,
            None,
            f"the consumer stands at {highest:,}, whose message is not in this store",
            f"see docs/how-to/back-up-and-restore.md, and run `reservation positions reset {app}`",
        )


def _left(
    connection: Connection[Any],
    component: Component[Any],
    category: str,
    rows: Sequence[StoredPosition],
) -> Iterator[CheckFinding]:
    """Give a category that was consumed and is no longer declared."""
    partitions: list[PartitionStatus] = of_stored(connection, rows)
    left = sum(one.lag.messages for one in partitions)
    more = "at least " if any(one.lag.at_least for one in partitions) else ""
    yield CheckFinding(
        CheckKind.POSITIONS,
        "finding" if left or more else "note",
        category,
        None,
        left,
        f"{component.name} consumed it and no longer declares it"
        + (f"; {more}{left:,} messages in it are not handled" if left or more else ""),
        "run the former declaration until they are handled"
        if left or more
        else f"run `reservation retire {component.name} --category {category} --apply`",
    )


def _out_of_order(
    connection: Connection[Any],
    component: Component[Any],
    category: str,
    rows: Sequence[StoredPosition],
) -> Iterator[CheckFinding]:
    size, after = rows[0].partitions, min(row.position for row in rows)
    try:
        check_order(component, category, size)
        check_waiting(connection, component, category, size, after)
    except GroupError as error:
        text, _, action = str(error).partition("; ")
        yield CheckFinding(CheckKind.PARTITIONS, "finding", category, None, None, text, action)


def findings_of_members(
    connection: Connection[Any], component: Component[Any]
) -> Iterator[CheckFinding]:
    """Give the living members that do not fit the declaration."""
    mine = ProcessDeclaration.of(component)
    for process, difference in living_differences(connection, component.name, mine):
        yield CheckFinding(
            CheckKind.MEMBERS,
            "finding",
            None,
            process,
            None,
            difference.text,
            f"{difference.action}; or stop that process first; see {GUIDE}",
        )
