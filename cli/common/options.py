"""Options that several commands share."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cli.common.errors import CommandError
from cli.common.extras import install_hint, is_installed
from reservation.postgres.embedded import data_folder, start_embedded

F = TypeVar("F", bound=Callable[..., Any])

# The variables from which libpq takes the address of the database.
_LIBPQ_VARIABLES = ("PGSERVICE", "PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE")

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

app_dir_option = click.option(
    "--app-dir",
    type=click.Path(file_okay=False),
    default=".",
    show_default="the current folder",
    help="The folder in which APP's module is looked up first.",
)


def folder_option(*names: str, what: str, required: bool = False) -> Callable[[F], F]:
    """Add an option that names a folder; the command gets a path, or None without it."""
    return click.option(
        *names,
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        required=required,
        help=what,
    )


def file_option(name: str, what: str) -> Callable[[F], F]:
    """Add an option that names a file to write; the command gets a path, or None without it."""
    return click.option(
        name, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help=what
    )


def batch_size_option(most: int, what: str) -> Callable[[F], F]:
    """Add ``--batch-size``, a number of messages for one transaction."""
    return click.option(
        "--batch-size",
        type=click.IntRange(1, most),
        default=1000,
        show_default=True,
        help=what,
    )


def database_option(command: F) -> F:
    """Add ``--database-url``; the command gets an address to connect to."""
    return click.option(
        "--database-url",
        envvar="RESERVATION_DATABASE_URL",
        show_envvar=True,
        metavar="URL",
        callback=_resolve,
        help="The store's database, as a libpq URL or connection string, such as "
        "postgresql://localhost/bank. Give a password in PGPASSWORD, a service file or a password "
        "file. The default is libpq's variables (PGHOST, PGSERVICE, …); without these, an "
        "embedded PostgreSQL is started.",
    )(command)


def app_options(command: F) -> F:
    """Add the argument ``APP`` and the option ``--app-dir``."""
    return _app_options(command, required=True)


def optional_app_options(command: F) -> F:
    """Add the same with an optional ``APP``, which is None by default."""
    return _app_options(command, required=False)


def _app_options(command: F, *, required: bool) -> F:
    metavar = "APP" if required else "[APP]"
    return click.argument("app", metavar=metavar, required=required)(app_dir_option(command))


def spark_options(command: F) -> F:
    """Add ``--master``, ``--remote`` and ``--conf``: where Spark runs, and its properties."""
    command = click.option(
        "--conf",
        multiple=True,
        metavar="KEY=VALUE",
        help="A property of Spark, as spark-submit takes it, such as spark.driver.memory=4g. "
        "Repeat it for several. Not for credentials.",
    )(command)
    command = click.option(
        "--remote",
        envvar="SPARK_REMOTE",
        show_envvar=True,
        is_eager=True,
        metavar="URL",
        help="A Spark Connect server, such as sc://host:15002, instead of a master.",
    )(command)
    return click.option(
        "--master",
        metavar="URL",
        callback=_one_place,
        help="Where Spark runs: local[N], spark://host:port, yarn or k8s://https://host:port.  "
        "[default: local[*]]",
    )(command)


def _one_place(context: click.Context, _: click.Parameter, value: str | None) -> str:
    if value is None:
        return "local[*]"
    if context.get_parameter_source("remote") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("Give --master or --remote, not both")
    context.params["remote"] = None  # an option takes precedence over a variable
    return value


def _resolve(context: click.Context, _: click.Parameter, value: str | None) -> str:
    if value:
        return value
    if value == "" or os.environ.get("RESERVATION_DATABASE_URL") == "":
        raise CommandError(
            "The database's address is empty, perhaps because a variable is not set; give an "
            "address, or leave out --database-url and RESERVATION_DATABASE_URL"
        )
    if context.resilient_parsing or any(name in os.environ for name in _LIBPQ_VARIABLES):
        return ""
    if not is_installed("embedded"):
        raise CommandError(
            f"No database is named: give --database-url, set RESERVATION_DATABASE_URL, or install "
            f"an embedded one with {install_hint('embedded')}"
        )
    address = start_embedded()
    click.echo(
        f"No database is named: using an embedded PostgreSQL, with its data in {data_folder()}. "
        f"For other programs:\nexport RESERVATION_DATABASE_URL={shlex.quote(address)}",
        err=True,
    )
    return address
