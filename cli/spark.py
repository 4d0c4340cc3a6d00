"""``reservation spark``: what Spark needs of us where it runs elsewhere."""

from pathlib import Path

import click

from cli.errors import Group, debug_option
from spark_jobs.package import build


@click.group(cls=Group)
@debug_option
def spark() -> None:
    """Get what is needed to run the jobs on a cluster."""


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
