"""``reservation reconcile``: prove on the stored data that no command was lost or done twice."""

import dataclasses
import json
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from cli.common.errors import NOT_IN_ORDER, debug_option, exit_on_sigterm
from cli.common.extras import require_extras
from cli.common.options import app_options, database_option, json_option, spark_options
from cli.spark.progress import progress
from reservation.app_path import load_component
from spark_jobs.common.result import VIOLATIONS
from spark_jobs.reconciliation import run as running
from spark_jobs.report import thresholds
from spark_jobs.report.output import outputs
from spark_jobs.snapshot.snapshot import GRACE

F = TypeVar("F", bound=Callable[..., Any])


class DurationType(click.ParamType[timedelta]):
    """A time that something may take, such as 90s, 5m, 2h or 1d."""

    name = "duration"
    _UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}  # noqa: RUF012

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Return the duration that a text says."""
        if isinstance(value, timedelta):
            return value
        text = str(value)
        number, unit = text[:-1], text[-1:]
        if not number.isdecimal() or unit not in self._UNITS:
            self.fail(f"{text!r} is no duration; write 90s, 5m, 2h or 1d", param, ctx)
        return timedelta(**{self._UNITS[unit]: int(number)})


def _file(name: str, what: str) -> Callable[[F], F]:
    return click.option(
        name,
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help=what,
    )


@click.command()
@app_options
@database_option
@spark_options
@json_option
@click.option(
    "--details",
    is_flag=True,
    help="Also measure latency, volume and reissues, as is always done for --html.",
)
@_file("--html", "Write a page to this file, which needs no other.")
@_file("--junit", "Write JUnit's XML to this file, for CI.")
@_file("--prometheus", "Write metrics to this file, for the textfile collector of node-exporter.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write every row that needs attention to this new folder, as Parquet.",
)
@click.option(
    "--fail-on",
    default=",".join(VIOLATIONS),
    show_default="every kind of finding",
    metavar="NAMES",
    help="What makes the exit status 1, as name, name:N or name:N%, several with commas between.",
)
@click.option("--warn", metavar="NAMES", help="What is only pointed out, written likewise.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep in this folder what was read, and read only what is new.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Compare all that --state keeps with the store, which reads everything.",
)
@click.option(
    "--jdbc",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="JAR",
    help="Read through PostgreSQL's JDBC driver, which is in this jar, so that the workers need no "
    "Python.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Go on until SIGTERM or SIGINT, and print a line for each violation that lasts; with "
    "--json an object a line.",
)
@click.option(
    "--archive",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Read this archive too, which `reservation archive` made, and the store from there on.",
)
@click.option(
    "--grace",
    type=DurationType(),
    default=GRACE,
    show_default="5m",
    help="How old a message is that counts as read, in a store in which no consumer of ours or of "
    "Eventide's keeps its position; with --follow also how long a violation lasts before it is "
    "printed.",
)
@click.pass_context
@debug_option
def reconcile(
    context: click.Context,
    app: str,
    app_dir: str,
    database_url: str,
    master: str,
    remote: str | None,
    conf: tuple[str, ...],
    as_json: bool,
    details: bool,
    html: Path | None,
    junit: Path | None,
    prometheus: Path | None,
    output: Path | None,
    fail_on: str,
    warn: str | None,
    state: Path | None,
    verify: bool,
    jdbc: Path | None,
    follow: bool,
    archive: Path | None,
    grace: timedelta,
) -> None:
    """Hold what the component APP was asked to do against what it did, with Spark.

    All categories are read from the running store, in parallel and under one snapshot. Of commands
    and their reservations it says what is reserved, pending (not yet read by the consumer), missing
    (read and not reserved), duplicate, in conflict (same key, other content), an orphan (a
    reservation without a command) or more than one message; of reserved commands and the events
    that follow them, what was handled, had its effect twice or had none, and which events follow
    nothing.

    With --follow it goes on, and tells a violation once it has lasted for the time of --grace, and
    when it is mended after that.

    Exit status: 0 nothing reached a threshold of --fail-on, with --follow none of what was told and
    stands; 1 something did; 2 it could not run. Needs Java 17 and the extra `spark`.

    \b
    Examples:
      reservation reconcile bank:account
      reservation reconcile bank:account --html report.html
      reservation reconcile bank:account --json | jq '.categories[0].missing'
      reservation reconcile bank:account --fail-on missing,effect-twice --warn duplicates:5%
      reservation reconcile bank:account --output findings --junit reconcile.xml
      reservation reconcile bank:account --state /var/lib/reservation/account
      reservation reconcile bank:account --follow --grace 2m --state /var/lib/reservation/account
      reservation reconcile bank:account --archive /var/lib/reservation/archive
      reservation reconcile bank:account --master spark://spark.example:7077
      reservation reconcile bank:account --jdbc /usr/share/java/postgresql.jar
    """
    if follow:
        _refuse_with_follow(
            details=details,
            html=html,
            junit=junit,
            output=output,
            archive=archive,
            jdbc=jdbc,
            remote=remote,
            verify=verify,
        )
    if verify and state is None:
        raise click.UsageError("--verify compares what --state keeps; name its folder with --state")
    require_extras("spark", *(["connect"] if remote else []))
    exit_on_sigterm()
    checked = thresholds.parse(fail_on)
    if warn:
        checked += thresholds.parse(warn, failing=False)
    component = load_component(app, app_dir)
    run = running.Run(
        component,
        app,
        Path(app_dir),
        database_url,
        grace=grace,
        details=details or html is not None,
        state=state,
        verify=verify,
        jdbc=jdbc,
        archive=archive,
        master=master,
        remote=remote,
        conf=conf,
    )
    if follow:
        from cli.spark.follow import follow_until_stopped

        if not follow_until_stopped(run, checked, prometheus, as_json=as_json):
            context.exit(NOT_IN_ORDER)
        return
    with outputs() as staged:
        if output:
            run = dataclasses.replace(run, findings=staged.folder(output))
        files = [
            (staged.file(place), f"spark_jobs.report.{module}", f"render_{name}")
            for module, name, place in (
                ("page.html", "html", html),
                ("junit", "junit", junit),
                ("prometheus", "prometheus", prometheus),
            )
            if place
        ]
        with progress(Console(stderr=True)) as watch:
            report = running.reconcile(run, watch)
        reached = thresholds.reached(report, checked)
        for path, module, render in files:
            path.write_text(getattr(import_module(module), render)(report, reached))
    if as_json:
        from spark_jobs.report.as_json import as_json as to_json

        click.echo(json.dumps(to_json(report, reached)))
    else:
        from spark_jobs.report.terminal import print_report

        print_report(report, reached, Console())
    if any(one.threshold.failing for one in reached):
        context.exit(NOT_IN_ORDER)


def _refuse_with_follow(**others: object) -> None:
    """Refuse what is made of one run, and a Spark that the rounds can not work in."""
    given = [f"--{name}" for name, value in others.items() if value]
    if given:
        raise click.UsageError(
            f"--follow goes on for ever and from this process, so it does not go together with "
            f"{', '.join(given)}"
        )
