"""``reservation spark``: what Spark needs from this package where it runs elsewhere."""

import json
from pathlib import Path

import click

from cli.common.errors import CommandGroup, debug_option
from cli.common.lazy import runs
from cli.common.options import app_dir_option, json_option
from spark_jobs.session.package import build


@click.group(cls=CommandGroup)
@debug_option
def spark() -> None:
    """Prepare what the jobs need to run elsewhere, or to start faster here.

    \b
    Example:
      reservation spark package --app bank:account --app-dir examples
    """


@spark.command("package")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default="reservation.zip",
    show_default=True,
    metavar="FILE",
    help="The zip file to write. An existing file is replaced.",
)
@click.option(
    "--app",
    metavar="APP",
    help="A component, such as bank:account, whose modules are added.",
)
@app_dir_option
@json_option
@debug_option
def package_command(output: Path, app: str | None, app_dir: str, as_json: bool) -> None:
    """Build the zip file for `spark-submit --py-files`.

    The file holds the Python modules of this package. With --app it also holds every module that
    the component imports from its folder. Compiled packages cannot be added: install psycopg,
    msgspec, pyarrow and adbc-driver-postgresql on the workers.

    `reservation reconcile --master` and `--remote` send such a file by themselves.

    \b
    Examples:
      reservation spark package
      reservation spark package -o bank.zip --app bank:account --app-dir examples
    """
    count = build(output, app, app_dir)
    if as_json:
        click.echo(json.dumps({"file": str(output), "files": count}))
    else:
        click.echo(f"{output}: {count} files")


@spark.command("prepare")
@json_option
@debug_option
@runs("cli.spark.execution.prepare:prepare", "spark")
def prepare_command() -> None:
    """Shorten the time that Spark takes to start on this machine.

    Most of a small job's time is spent on loading Java's classes. This command runs the jobs once,
    without a database, and stores the loaded classes in a file of about 180 MB in the user's cache.
    Commands that run Spark have that done in the background when they have ended, once for each
    installation of Spark and Java. Run this command where that is too late, as in an image.

    \b
    Examples:
      reservation spark prepare
    """
