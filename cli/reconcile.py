"""``reservation reconcile``: prove on the stored data that no command was lost or done twice."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import click
from rich.console import Console

from cli.errors import NOT_IN_ORDER, debug_option
from cli.extras import require_extras
from cli.options import app_options, database_option
from cli.termination import clear_away_on_sigterm
from reservation.app_path import load_component
from spark_jobs.run import as_json, reconcile_component


@click.command()
@app_options
@database_option
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write every row that needs attention to this new folder, as Parquet.",
)
@click.pass_context
@debug_option
def reconcile(
    context: click.Context,
    app: str,
    app_dir: str,
    database_url: str,
    as_json_: bool,
    output: Path | None,
) -> None:
    """Hold the commands of the component APP against their reservations, with Spark.

    Both categories are read from the running store, in parallel and under one snapshot. For each
    reservation category it says how many commands there are and how many distinct keys, and of
    these what is reserved, pending (not yet read by the consumer), missing (read and not reserved),
    duplicate, in conflict (same key, other content), an orphan (a reservation without a command) or
    more than one message.

    Exit status: 0 all is in order; 1 something is missing, an orphan, more than one message or in
    conflict; 2 it could not run. Needs Java 17 and the extra `spark`.

    \b
    Examples:
      reservation reconcile bank:account
      reservation reconcile bank:account --json | jq '.categories[0].missing'
      reservation reconcile bank:account --output findings
    """
    require_extras("spark")
    clear_away_on_sigterm()
    component = load_component(app, app_dir)
    progress = Console(stderr=True)
    status = progress.status("Reconciling with Spark…") if sys.stderr.isatty() else nullcontext()
    with status:
        report = reconcile_component(component, app, app_dir, database_url, output)
    if as_json_:
        click.echo(json.dumps(as_json(report)))
    else:
        from spark_jobs.report import print_report

        print_report(report, Console())
    if not report.in_order:
        context.exit(NOT_IN_ORDER)
