"""``reservation archive``: its options, and its help."""

import click

from cli.common.durations import TimestampType
from cli.common.errors import debug_option
from cli.common.lazy import runs
from cli.common.options import (
    app_options,
    database_option,
    folder_option,
    json_option,
    spark_options,
)


@click.command()
@app_options
@folder_option(
    "--to",
    "folder",
    what="The folder of the archive. An existing archive is continued.",
    required=True,
)
@click.option(
    "--before",
    type=TimestampType(),
    metavar="DATE",
    required=True,
    help="Archive messages older than this: a date such as 2026-01-31 (UTC), or an age such as 90d "
    "or 36h.",
)
@database_option
@spark_options
@json_option
@click.pass_context
@debug_option
@runs("cli.spark.execution.archive:archive", "spark")
def archive() -> None:
    """Copy old messages of the component APP to Parquet, by category and day, with Spark.

    Commands, reservations, events and the messages of subscribed categories older than a date are
    archived. Of each category, the archive takes messages from the beginning, up to the last one
    that the consumer has read. A further run adds what has become old since. Nothing is removed
    from the store.

    The command reads back what it wrote and compares count and hash with those of the server's own
    rows. If they are the same, it prints the commands that remove archived messages from the store.
    `reservation reconcile --archive` reads archive and store together.

    Exit status: 0 archived and verified; 1 archive and store differ, and nothing was added; 2 the
    command could not run. Needs the extra `spark`, and Java 17 or the extra `java`.

    \b
    Examples:
      reservation archive bank:account --to /var/lib/reservation/archive --before 2026-01-01
      reservation archive bank:account --to /var/lib/reservation/archive --before 90d --json
      reservation reconcile bank:account --archive /var/lib/reservation/archive
    """
