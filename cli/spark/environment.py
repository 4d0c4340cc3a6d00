"""``reservation spark``: what Spark needs of us where it runs elsewhere."""

from pathlib import Path

import click
from rich.console import Console

from cli.common.errors import Group, debug_option
from cli.common.extras import require_extras
from spark_jobs.session.package import build


@click.group(cls=Group)
@debug_option
def spark() -> None:
    """Get what is needed to run the jobs elsewhere, or to start them faster here."""


@spark.command("package")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default="reservation.zip",
    show_default=True,
    metavar="FILE",
    help="Where to write it; a file that is there is replaced.",
)
@click.option(
    "--app",
    metavar="APP",
    help="A component, such as bank:account, whose modules are to travel too.",
)
@click.option(
    "--app-dir",
    type=click.Path(file_okay=False),
    default=".",
    show_default="the current folder",
    help="The folder in which APP's module is looked for first.",
)
@debug_option
def package_command(output: Path, app: str | None, app_dir: str) -> None:
    """Build the zip file that `spark-submit --py-files` takes.

    It holds the Python of this package and, with --app, everything that the component imports from
    its folder. What is compiled can not travel in it: the workers need psycopg, msgspec, pyarrow
    and adbc-driver-postgresql of their own.

    `reservation reconcile --master` and `--remote` send such a file by themselves.

    \b
    Examples:
      reservation spark package
      reservation spark package -o bank.zip --app bank:account --app-dir examples
    """
    count = build(output, app, app_dir)
    click.echo(f"{output}: {count} files")


@spark.command("prepare")
@debug_option
def prepare_command() -> None:
    """Let Spark start in about half the time on this machine.

    Most of a small job's time goes into loading Java's classes. This runs through the jobs once,
    without a database, and keeps the classes in a file of some 180 MB in the user's cache. Java
    goes without it where it does not fit any more; run this again after Spark or Java was updated.

    \b
    Examples:
      reservation spark prepare
    """
    require_extras("spark")
    from spark_jobs.jobs.prepare import keep

    with Console(stderr=True).status("Starting Spark and keeping its classes…"):
        kept = keep()
    click.echo(f"{kept}: {kept.stat().st_size / 1e6:,.0f} MB")
