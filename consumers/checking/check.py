"""One look at a store, under one snapshot, beside the declaration that is to be deployed."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from psycopg import Connection, sql

from consumers.checking.entities import findings_of_entities
from consumers.checking.groups import findings_of_members, findings_of_positions
from consumers.checking.messages import (
    checked_types,
    exact,
    findings_of_names,
    findings_of_types,
    sampled,
)
from consumers.checking.report import CheckFinding, CheckKind, CheckReport
from consumers.group.inspection.status import read_time
from consumers.group.inspection.stored_positions import categories
from consumers.group.inspection.unread import unread_categories
from reservation.component import Component
from reservation.inspection.sampling import use_indexes
from reservation.inspection.snapshots import count_snapshots
from reservation.inspection.tally import Tally
from reservation.messages.message import printable
from reservation.postgres.error_translation import translated
from reservation.store.schema.category_lock import (
    REMEDY,
    REPLACED,
    locks_category,
    may_acquire,
)
from reservation.store.schema.missing_rights import known_roles, may_see_senders

# How many messages of each category are looked at, where no other number is asked for.
SAMPLE = 2_000


def check(
    connection: Connection[Any],
    component: Component[Any],
    app: str,
    *,
    sample: int = SAMPLE,
    tallies: Mapping[str, Tally] | None = None,
    snapshot: str | None = None,
    began: Callable[[str], None] = lambda _: None,
) -> CheckReport:
    """Compare a declaration with a store.

    The number of statements depends on the number of categories alone, and their work is bounded.
    """
    with translated(), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if snapshot is not None:
            name = sql.Literal(snapshot)
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(name))
        use_indexes(connection)
        time, store_id = read_time(connection)
        began("messages")
        found = sampled(connection, component, sample) if tallies is None else exact(tallies)
        types = checked_types(component, found)
        of_category = {name: tally for name, (_, tally) in found.items()}
        began("reservations, positions and members")
        findings = [
            *findings_of_types(component, types),
            *findings_of_names(connection, component, of_category),
            *findings_of_positions(connection, component, app),
            *findings_of_members(connection, component),
            *_snapshots(connection, component),
            *_unread(connection, component),
            *findings_of_entities(connection, component),
            *_rights(connection),
            *_locks(connection),
        ]
    return CheckReport(
        component=component.name,
        time=time,
        store_id=store_id,
        full=tallies is not None,
        sample=sample if tallies is None else None,
        types=types,
        findings=sorted(findings, key=lambda finding: finding.severity != "finding"),
    )


def _snapshots(connection: Connection[Any], component: Component[Any]) -> Iterator[CheckFinding]:
    count = count_snapshots(connection, component)
    if count is None or not count.discarded:
        return
    more = "at least " if count.at_least else ""
    yield CheckFinding(
        CheckKind.SNAPSHOTS,
        "note",
        component.name,
        None,
        count.discarded,
        f"{more}{count.discarded:,} of {count.snapshots:,} snapshots were made by other code",
        "their entities are read from their events once, which takes longer",
    )


def _unread(connection: Connection[Any], component: Component[Any]) -> Iterator[CheckFinding]:
    for one in unread_categories(connection, categories(component)):
        yield CheckFinding(
            CheckKind.UNREAD,
            "note",
            one.category,
            None,
            one.messages,
            str(one),
            "correct the name if a sender misspelled it; otherwise start its consumer",
        )


def _rights(connection: Connection[Any]) -> Iterator[CheckFinding]:
    for role in known_roles(connection):
        if not role.lacks:
            continue
        more = f" and {len(role.lacks) - 3} more" if len(role.lacks) > 3 else ""
        yield CheckFinding(
            CheckKind.RIGHTS,
            "finding",
            None,
            role.role,
            None,
            printable(f"the {role.kind} lacks {', '.join(role.lacks[:3])}{more}"),
            f"run `{role.command}` as the owner of the store",
        )
    if not may_see_senders(connection):
        yield CheckFinding(
            CheckKind.RIGHTS,
            "note",
            None,
            printable(connection.info.user),
            None,
            "may not see which roles are senders, so their rights were not looked at",
            "check as an auditor",
        )


def _locks(connection: Connection[Any]) -> Iterator[CheckFinding]:
    name = "message_store.acquire_lock"
    if not may_acquire(connection):
        text = f"{printable(connection.info.user)} may not call it, so it was not looked at"
        yield CheckFinding(
            CheckKind.LOCKS, "note", None, name, None, text, "check as the owner of the store"
        )
    elif not locks_category(connection):
        yield CheckFinding(CheckKind.LOCKS, "finding", None, name, None, REPLACED, REMEDY)
