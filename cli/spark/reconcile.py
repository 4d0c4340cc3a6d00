"""``reservation reconcile``: its options, and its help."""

from pathlib import Path

import click

from cli.common.durations import DurationType, SinceType
from cli.common.errors import debug_option
from cli.common.lazy import runs
from cli.common.options import (
    app_options,
    database_option,
    file_option,
    folder_option,
    json_option,
    spark_options,
)
from spark_jobs.common.result import VIOLATIONS


@click.command()
@app_options
@database_option
@spark_options
@json_option
@click.option(
    "--details",
    is_flag=True,
    help="Also measure latency, volume and reissues. --html always measures them.",
)
@click.option(
    "--values",
    is_flag=True,
    help="Also report the values of fields in which commands of one key differ, which are data of "
    "messages; without it, only the fields' names.",
)
@file_option("--html", "Write the report as one self-contained HTML page.")
@file_option("--junit", "Write the report as JUnit XML, for CI.")
@file_option("--prometheus", "Write metrics for the textfile collector of node-exporter.")
@click.option(
    "--findings",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Add every row that needs attention to the table in this folder, as Parquet.",
)
@click.option(
    "--fail-on",
    default=",".join(VIOLATIONS),
    show_default="every kind of finding",
    metavar="NAMES",
    help="The findings that make the exit status 1: name, name:N or name:N%, separated by commas, "
    "such as missing,duplicates:5%.",
)
@click.option(
    "--warn",
    metavar="NAMES",
    help="The findings that print a warning, in the same form.",
)
@click.option(
    "--since",
    type=SinceType(),
    metavar="TIME|POSITION",
    help="Only look at what belongs to new messages: from a global position on, such as 120000, or "
    "from a time in UTC, such as 2026-01-31, or not older than a time span, such as 36h.",
)
@folder_option(
    "--state",
    what="Keep what was read in this folder, and read only new messages the next time.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Run until SIGTERM or SIGINT, and print a line for each violation that persists; with "
    "--json one object a line.",
)
@folder_option(
    "--archive",
    what="Also read this archive, made by `reservation archive`, and the store from where it ends.",
)
@click.option(
    "--grace",
    type=DurationType(),
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="With --follow, how long a violation must persist before it is reported. In a store "
    "without consumers' positions, how old a message must be to count as read. Such as 90s.",
)
@click.pass_context
@debug_option
@runs("cli.spark.execution.reconcile:reconcile", "spark")
def reconcile() -> None:
    """Compare the commands of the component APP with their effects, with Spark.

    The job reads all categories of the running store in parallel, under one snapshot. It compares
    commands with their reservations: reserved, pending (the consumer has not read it yet), missing
    (read, but not reserved), duplicate, conflict (same key, different content), orphan (a
    reservation without a command) or more than one message. It compares reserved commands with the
    events that follow them: handled, effect twice or unhandled, and events without a cause.
    Messages of other components that APP subscribes to are compared with these events too, and with
    the passes that its consumers record where no event follows.

    With --follow it keeps running. It reports a violation once it has persisted for --grace, and
    reports again when it is mended.

    Exit status: 0 no threshold of --fail-on was exceeded (with --follow, by the reported violations
    that still stand); 1 a threshold was exceeded; 2 the command could not run. Needs the extra
    `spark`, and Java 17 or the extra `java`.

    \b
    Examples:
      reservation reconcile bank:account
      reservation reconcile bank:account --html report.html
      reservation reconcile bank:account --json | jq '.categories[0].missing'
      reservation reconcile bank:account --fail-on missing,effect-twice --warn duplicates:5%
      reservation reconcile bank:account --findings findings --junit reconcile.xml
      reservation reconcile bank:account --values --json | jq '.samples[].differences'
      reservation reconcile bank:account --since 36h
      reservation reconcile bank:account --state /var/lib/reservation/account
      reservation reconcile bank:account --follow --grace 2m --state /var/lib/reservation/account
      reservation reconcile bank:account --archive /var/lib/reservation/archive
      reservation reconcile bank:account --master spark://spark.example:7077
    """
