"""``reservation demo``: its options, and its help."""

import click

from cli.common.errors import debug_option
from cli.common.lazy import runs


@click.command()
@click.option(
    "--seed",
    type=int,
    default=1,
    show_default=True,
    help="The start of the random choices. The same seed repeats a run.",
)
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
@click.pass_context
@debug_option
@runs("cli.demo.demonstration:demo", "spark", "embedded")
def demo() -> None:
    """See every command take effect once, on a temporary embedded PostgreSQL.

    The demo sends 20,000 bank commands for 200 accounts; one in ten is a reissue. It runs both
    consumers as processes, kills one of them with SIGKILL and starts it again. When all is handled,
    it checks the invariants I1 to I8 on the data, and reconciles the data with Spark. Then it
    deletes the data. It touches no other database, whatever the environment names.

    Exit status: 0 every invariant held and Spark found everything in order; 1 not so; 2 the demo
    could not run. Needs the extras `spark` and `embedded`, and Java 17 or the extra `java`.

    \b
    Examples:
      reservation demo
      reservation demo --seed 7 --json
    """
