"""The reports of reconciliations that are kept in the store.

A report is stored by an auditor, through the one function that it may write with, and is changed by
nobody. `reservation prune` removes old ones.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID, uuid4

from psycopg import Connection

from reservation import __version__
from reservation.errors import DatabaseUnavailableError, MissingRightError, ReservationError
from reservation.postgres.connection import connect
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.store.schema.install import check_installed

_QUERIES = load_queries("reservation.maintenance", "stored_reports.sql")

# Seconds before each further attempt: the database may fail over just when a long job ends.
_WAITS = (1.0, 2.0, 4.0)

# Beyond every number.
_LAST = 2**63 - 1


class ReportError(ReservationError):
    """A report cannot be stored here."""


@dataclass(frozen=True, slots=True)
class NewReport:
    """A report that is to be stored.

    Attributes:
        report: what `reservation reconcile --json` prints.
        findings: by kind, how many findings nobody has accepted.
        accepted: by kind, how many were accepted.
        mode: whether everything was read, or what was new since the last run.
        up_to: the last global position that was read.
        duration: how long the run took.
        id: the same when it is stored again.
    """

    report: Mapping[str, Any]
    findings: Mapping[str, int]
    accepted: Mapping[str, int]
    mode: Literal["full", "incremental"]
    up_to: int
    duration: timedelta
    id: UUID = field(default_factory=uuid4)


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A report that was stored, without its content.

    Attributes:
        number: in the order in which they were stored.
        component: whose messages were reconciled.
        time: of the snapshot that was read.
        stored_at: when it was stored.
        stored_by: the database role that did.
        mode: full or incremental.
        up_to: the last global position that was read.
        categories: what was read.
        duration: how long the run took.
        in_order: whether no threshold that fails a run was exceeded.
        findings: by kind, how many findings nobody has accepted.
        accepted: by kind, how many were accepted.
        program: the version of the package that made it.
    """

    number: int
    component: str
    time: datetime
    stored_at: datetime
    stored_by: str
    mode: str
    up_to: int
    categories: Sequence[str]
    duration: timedelta
    in_order: bool
    findings: Mapping[str, int]
    accepted: Mapping[str, int]
    program: str


def check_may_store(database_url: str) -> None:
    """Make sure that a report can be stored, before the work that it is of begins.

    Raises:
        DatabaseUnavailableError: the database cannot be reached.
        SchemaError: it lacks the schema ``reservation``, or has another version of it.
        ReportError: it is a replica, which takes no writes.
        MissingRightError: the role may not store reports.
    """
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        with translated():
            ((role, may, is_replica),) = connection.execute(_QUERIES["may_store"]).fetchall()
    if is_replica:
        raise ReportError(
            "The database is a replica and takes no writes, so the report cannot be stored; leave "
            "out --store-report, or name the primary"
        )
    if not may:
        raise MissingRightError(
            f"The role {role} may not store reports; let the owner of the store run `reservation "
            f"store grants auditor {role}`, or leave out --store-report"
        )


def store(database_url: str, report: NewReport) -> None:
    """Store a report; it is stored once, however often this is tried.

    Args:
        database_url: of an auditor, or of the owner of the store.
        report: the report.

    Raises:
        DatabaseUnavailableError: the database cannot be reached, after several attempts.
        MissingRightError: the role may not store reports.
        StoreError: the store does not take it: it is too large, for example.
    """
    for wait in (*_WAITS, None):
        try:
            with connect(database_url, autocommit=True) as connection:
                _store(connection, report)
        except DatabaseUnavailableError:
            if wait is None:
                raise
            time.sleep(wait)
        else:
            return


def _store(connection: Connection[Any], report: NewReport) -> None:
    values = {
        "id": report.id,
        "report": json.dumps(report.report),
        "findings": json.dumps(report.findings),
        "accepted": json.dumps(report.accepted),
        "mode": report.mode,
        "up_to": report.up_to,
        "duration": report.duration,
        "program": __version__,
    }
    with translated():
        connection.execute(_QUERIES["store"], values)


def page(
    connection: Connection[Any],
    component: str,
    limit: int,
    *,
    key: int | None = None,
    backward: bool = False,
) -> list[StoredReport]:
    """Return the last reports of a component, the last one first.

    Args:
        connection: to the store.
        component: the component's name.
        limit: how many at most.
        key: begin behind the report of this number; None for the last one.
        backward: return those before that report instead, those next to it first.
    """
    edge = _LAST if key is None else key
    values = {"component": component, "limit": limit, "edge": edge}
    query = _QUERIES["newer" if backward else "older"]
    with translated():
        return [StoredReport(*row) for row in connection.execute(query, values)]


def read(connection: Connection[Any], number: int) -> tuple[StoredReport, str] | None:
    """Return a report with its content, as JSON; None if there is none of that number."""
    with translated():
        rows = connection.execute(_QUERIES["one"], {"number": number}).fetchall()
    return (StoredReport(*rows[0][:-1]), rows[0][-1]) if rows else None


def components(connection: Connection[Any]) -> list[str]:
    """Return the names of the components that have reports."""
    with translated():
        return [name for (name,) in connection.execute(_QUERIES["components"])]
