"""A reconciliation's settings."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import DeclarationError
from spark_jobs.common.declaration import Declaration
from spark_jobs.common.errors import SparkSettingError
from spark_jobs.facts.codes import Codes
from spark_jobs.facts.declared_code import code_of_component
from spark_jobs.session.session import LOCAL
from spark_jobs.session.settings import is_local
from spark_jobs.snapshot.snapshot import GRACE


@dataclass(frozen=True, slots=True)
class Run:
    """A reconciliation's settings.

    Attributes:
        component: whose commands and events are looked at.
        app, app_dir: the app path by which Spark's workers load it, and its folder.
        database_url: a libpq URL or connection string; empty for libpq's own defaults.
        grace: how old a message must be to count as read, if no position is stored; with
            ``--follow``, how long a violation must persist before it is reported.
        details: whether to measure latency, volume and reissues too.
        values: whether to report, for a conflict, the values of the fields that differ, not only
            their names.
        findings: a new folder for every row that needs attention, as Parquet: that of this run in a
            table.
        state: the folder of what earlier runs have read; None to read everything.
        since: the global position or the time, with its zone, from which on messages are new; only
            what belongs to these is looked at. None to look at everything.
        archive: the folder of an archive to read too; None to read only the store.
        master, remote, conf: where Spark runs, and its properties; see
            `spark_jobs.session.session`.
    """

    component: Component
    app: str
    app_dir: Path
    database_url: str
    grace: timedelta = GRACE
    details: bool = False
    values: bool = False
    findings: Path | None = None
    state: Path | None = None
    since: int | datetime | None = None
    archive: Path | None = None
    master: str | None = LOCAL
    remote: str | None = None
    conf: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse a component that has nothing to reconcile, and what needs all messages."""
        if self.since is not None and (self.details or self.state or self.archive):
            raise SparkSettingError(
                "A run with since= reads only what is new in the store; leave out its state, "
                "archive and details"
            )
        component = self.component
        declared = declarations(component)
        if not (declared.own.reservations or declared.own.initiates or declared.others):
            raise DeclarationError(
                f"The component {component.name!r} reserves no command, initiates with none and "
                f"subscribes to none, so there is nothing to reconcile"
            )


def app_dir(run: Run) -> Path | None:
    """Return the folder in which the workers find the app; None if it was sent to them."""
    return run.app_dir.resolve() if runs_locally(run) else None


def runs_locally(run: Run) -> bool:
    """Return whether Spark runs within one process of this machine."""
    return run.remote is None and run.master is not None and is_local(run.master)


def judged_by(run: Run) -> str:
    """Return everything of a component that verdicts depend on, as JSON.

    What its functions call is not part of it.
    """
    return json.dumps(
        {
            "keys": json.loads(Declaration.of(run.component).to_json()),
            "code": code_of_component(run.component),
            "silentTypes": Codes.of(run.component).silent_types,
            "startsAreFirst": declarations(run.component).starts_are_first,
        }
    )


def declaration_of(run: Run) -> str:
    """Return a digest of that: findings of runs with the same one were judged alike."""
    return hashlib.sha256(judged_by(run).encode()).hexdigest()[:16]
