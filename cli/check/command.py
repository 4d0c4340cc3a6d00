"""``reservation check``: its options, and its help."""

import click

from cli.common.errors import debug_option
from cli.common.lazy import runs
from cli.common.options import app_options, database_option, json_option, spark_options


@click.command()
@app_options
@click.option(
    "--sample",
    type=click.IntRange(1, 100_000),
    default=2_000,
    show_default=True,
    metavar="N",
    help="How many messages of each category to decode: the oldest, the newest, and some at places "
    "between them.",
)
@click.option(
    "--full",
    is_flag=True,
    help="Decode every message, with Spark. Needs the extra `spark`, and Java 17 or the extra "
    "`java`.",
)
@database_option
@spark_options
@json_option
@click.pass_context
@debug_option
@runs("cli.check.running:check_app")
def check() -> None:
    """Compare the component APP with the store, before it is deployed.

    For each category and type it prints how many messages there are, how many of them were
    decoded, and how many cannot be. It names types that APP does not declare, and fields that the
    data or the class lacks. It also looks for reservations under other names than APP declares,
    positions and partitions that do not fit, running processes beside which APP may not start,
    snapshots that will be discarded, and roles that lack a right.

    Up to 100,000 messages of a category are counted; a higher number is estimated, and marked ~.
    All of it is read under one snapshot, and nothing is written. An auditor's rights are enough.

    Exit status: 0 in order; 1 something needs attention before the deployment; 2 the command could
    not check.

    \b
    Examples:
      reservation check bank:account
      reservation check bank:account --sample 50000
      reservation check bank:account --full --master spark://spark.example:7077
      reservation check bank:account --json | jq '.findings[] | select(.severity == "finding")'
    """
