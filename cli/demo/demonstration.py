"""Run the demo, and print what it finds."""

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from cli.common.errors import NOT_IN_ORDER, exit_on_sigterm
from cli.demo.consumers import ConsumerProcesses
from cli.demo.course import Course
from cli.demo.examples import examples_folder
from reservation.app_path import load_component
from reservation.postgres.connection import connect
from reservation.postgres.embedded import start_embedded
from reservation.store.client import MessageStore
from reservation.store.schema.install import install
from spark_jobs.common.result import Report
from spark_jobs.reconcile import reconcile
from spark_jobs.report.as_json import as_json
from spark_jobs.report.terminal import print_report
from spark_jobs.report.thresholds import ExceededThreshold, in_order, reached
from spark_jobs.run import Run
from spark_jobs.session.java import require_java

if TYPE_CHECKING:
    from bank.invariants import Invariant

APP = "bank:account"
SENDS = 20_000
ACCOUNTS = 200
BROKEN_SHOWN = 5


def demo(context: click.Context, seed: int, as_json_: bool) -> None:
    """Run `reservation demo`; the arguments are its options."""
    started = time.monotonic()
    require_java()
    exit_on_sigterm()
    console = Console(stderr=as_json_)
    app_dir = examples_folder()
    component = load_component(APP, app_dir)
    from bank.invariants import check_invariants
    from bank.traffic import make_traffic

    with tempfile.TemporaryDirectory(prefix="reservation-", ignore_cleanup_errors=True) as folder:
        database_url = start_embedded(Path(folder) / "postgres", delete=True)
        with (
            connect(database_url, autocommit=True) as connection,
            MessageStore.open(database_url) as store,
            ConsumerProcesses(APP, app_dir, database_url, Path(folder)) as consumers,
        ):
            install(connection)
            console.print("An embedded PostgreSQL runs, with the message store installed.")
            traffic = make_traffic(accounts=ACCOUNTS, sends=SENDS, seed=seed)
            acknowledged = Course(console, connection, store, consumers, seed).run(traffic)
            statuses = consumers.stop()
            ended = ", ".join(f"{which} with status {code}" for which, code in statuses.items())
            console.print(f"Both consumers stopped on SIGTERM: {ended}.")
            console.print(
                f"{SENDS:,} sends are {len(acknowledged):,} stored commands: a retry with the same "
                f"message id is stored once."
            )
            invariants = check_invariants(connection, acknowledged)
            if not as_json_:
                _print_invariants(console, invariants)
        with console.status("Reconciling with Spark…"):
            report = reconcile(Run(component, APP, app_dir, database_url))

    seconds = time.monotonic() - started
    found = reached(report)
    well = (
        in_order(found)
        and not any(statuses.values())
        and all(invariant.holds for invariant in invariants)
    )
    if as_json_:
        click.echo(json.dumps(_as_json(well, invariants, report, found, seconds)))
    else:
        print_report(report, found, console)
        verdict = "every command took effect once" if well else "see what is marked above"
        console.print(f"{len(traffic):,} commands sent in {seconds:.0f} s in all: {verdict}.")
    if not well:
        context.exit(NOT_IN_ORDER)


def _as_json(
    well: bool,
    invariants: "list[Invariant]",
    report: Report,
    found: Sequence[ExceededThreshold],
    seconds: float,
) -> dict[str, Any]:
    return {
        "inOrder": well,
        "seconds": round(seconds, 1),
        "invariants": [
            {
                "name": invariant.name,
                "statement": invariant.statement,
                "holds": invariant.holds,
                "brokenBy": invariant.broken_by[:BROKEN_SHOWN],
            }
            for invariant in invariants
        ],
        "reconciliation": as_json(report, found),
    }


def _print_invariants(console: Console, invariants: "list[Invariant]") -> None:
    for invariant in invariants:
        mark = ("holds ", "green") if invariant.holds else ("BROKEN", "bold red")
        console.print(Text.assemble(mark, f"  {invariant.name}  {invariant.statement}"))
        for what in invariant.broken_by[:BROKEN_SHOWN]:
            console.print(Text(f"            {what}"))
