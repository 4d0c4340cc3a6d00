"""One job alone, as ``spark-submit`` starts it.

    spark-submit --py-files bank.zip spark_jobs/jobs/submit.py latency bank:account

It prints the job's part of the report as JSON; the exit status is that of
``reservation reconcile``. Where Spark runs, and with what, is decided by ``spark-submit``; the
database's address comes from the environment.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

from pyspark.sql import SparkSession

from reservation.app_path import load_component
from reservation.errors import ReservationError
from spark_jobs import reconcile
from spark_jobs.common.address import DATABASE_VARIABLE
from spark_jobs.common.result import Events, Finding, Report
from spark_jobs.findings.described import OF_CAUSES
from spark_jobs.jobs import archive
from spark_jobs.report import thresholds
from spark_jobs.report.as_json import as_json
from spark_jobs.run import Run
from spark_jobs.snapshot.snapshot import Snapshot

# By job, the parts of the report that it prints.
PARTS = {
    "reconcile": ("categories", "initiations", "samples", "accepted"),
    "effects": ("effects", "events", "samples", "accepted"),
    "latency": ("latency", "volume"),
    "reissues": ("reissues",),
}

# The jobs that judge, and whether they judge causes, and not keys.
_OF_CAUSES = {"reconcile": False, "effects": True}

_NOT_IN_ORDER, _COULD_NOT_RUN = 1, 2


def main(arguments: Sequence[str]) -> None:
    """Run one job, and end the process."""
    job, *rest = arguments or [""]
    if job == "archive":
        _archive(*_named("APP DIR DATE", rest, job))
    elif job in PARTS:
        _report(job, *_named("APP", rest, job))
    else:
        _refuse(f"the first argument names a job: {', '.join([*PARTS, 'archive'])}; got {job!r}")


def _named(names: str, arguments: Sequence[str], job: str) -> Sequence[str]:
    """Return the arguments of a job; end the process if they are not those that it needs."""
    if len(arguments) != len(names.split()) or any(text.startswith("-") for text in arguments):
        _refuse(f"usage: spark-submit --py-files FILE {sys.argv[0]} {job} {names}")
    return arguments


def _report(job: str, app: str) -> None:
    with _ending(), _submitted(app) as (run, snapshot, spark):
        report = alone(job, run, snapshot, spark)
        sys.stdout.write(json.dumps(part(job, report)) + "\n")
        if thresholds.reached(report):
            sys.exit(_NOT_IN_ORDER)


def _archive(app: str, folder: str, date: str) -> None:
    try:
        before = datetime.fromisoformat(date)
    except ValueError:
        _refuse(f"{date!r} is not a date; write 2026-01-31")
    before = before.replace(tzinfo=before.tzinfo or UTC)
    with _ending(), _submitted(app) as (run, snapshot, spark):
        result = archive.in_session(run.component, Path(folder), before, snapshot, spark)
        sys.stdout.write(json.dumps(dataclasses.asdict(result), default=_plain) + "\n")
        if result.differences:
            sys.exit(_NOT_IN_ORDER)


def _plain(value: datetime | timedelta) -> str | float:
    return value.total_seconds() if isinstance(value, timedelta) else value.isoformat()


def _refuse(why: str) -> NoReturn:
    """Print in one line why the job cannot run, and end the process."""
    sys.stderr.write(f"Error: {why}\n")
    sys.exit(_COULD_NOT_RUN)


@contextmanager
def _ending() -> Iterator[None]:
    """End the process with one line after an error."""
    try:
        yield
    except ReservationError as error:
        _refuse(str(error))


@contextmanager
def _submitted(app: str) -> Iterator[tuple[Run, Snapshot, SparkSession]]:
    """Open a snapshot and a session for a run."""
    url = os.environ.get(DATABASE_VARIABLE, "")
    run = Run(load_component(app, "."), app, Path(), url, master=None)
    with reconcile.working(run) as (snapshot, spark):
        yield run, snapshot, spark


def alone(job: str, run: Run, snapshot: Snapshot, spark: SparkSession) -> Report:
    """Return a report with the results of one job only."""
    component, name = run.component, run.component.name
    if job not in _OF_CAUSES:
        # Which commands are duplicates is known once they are judged.
        found = reconcile.in_session(dataclasses.replace(run, details=True), snapshot, spark)
        report = Report(name, snapshot.time, (), (), Events(name, 0, 0, 0, 0), ())
        return dataclasses.replace(
            report, latency=found.latency, volume=found.volume, reissues=found.reissues
        )
    report = reconcile.in_session(run, snapshot, spark)

    def found_by(finding: Finding) -> bool:
        return (finding.finding in OF_CAUSES) is _OF_CAUSES[job]

    empty = Events(component.name, 0, 0, 0, 0)
    of_causes = _OF_CAUSES[job]
    return dataclasses.replace(
        report,
        categories=() if of_causes else report.categories,
        effects=report.effects if of_causes else (),
        subscriptions=(),
        events=report.events if of_causes else empty,
        findings=[one for one in report.findings if found_by(one)],
        accepted=[one for one in report.accepted if found_by(one.finding)],
    )


def part(job: str, report: Report) -> dict[str, Any]:
    """Return the part of a report that a job makes, as one JSON object."""
    whole = as_json(report, ())
    return {name: whole[name] for name in ("component", "time", *PARTS[job])}


if __name__ == "__main__":
    # The modules beside this one are not top-level modules.
    del sys.path[0]
    main(sys.argv[1:])
