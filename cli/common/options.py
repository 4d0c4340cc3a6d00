"""Options that several commands share."""

import os
import shlex
from collections.abc import Callable
from typing import Any, TypeVar

import click

from cli.common.embedded import data_folder, start_embedded
from cli.common.errors import CommandError
from cli.common.extras import install_hint, is_installed

F = TypeVar("F", bound=Callable[..., Any])

# Variables with which libpq is told where the database is.
_LIBPQ_VARIABLES = ("PGSERVICE", "PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE")

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def database_option(command: F) -> F:
    """Add ``--database-url``; the command gets an address that can be connected to."""
    return click.option(
        "--database-url",
        envvar="RESERVATION_DATABASE_URL",
        show_envvar=True,
        metavar="URL",
        callback=_resolve,
        help="The store's database, as a libpq URL or connection string. Keep passwords out of it: "
        "libpq takes them from PGPASSWORD, a service file or a password file. Without it, libpq's "
        "variables (PGHOST, PGSERVICE, …) decide; without those, an embedded PostgreSQL is "
        "started.",
    )(command)


def app_options(command: F) -> F:
    """Add the argument ``APP`` and the option ``--app-dir``."""
    return _app_options(command, required=True)


def optional_app_options(command: F) -> F:
    """Add the same, where ``APP`` may be left out; it is None then."""
    return _app_options(command, required=False)


def _app_options(command: F, *, required: bool) -> F:
    command = click.option(
        "--app-dir",
        type=click.Path(file_okay=False),
        default=".",
        show_default="the current folder",
        help="The folder in which APP's module is looked for first.",
    )(command)
    metavar = "APP" if required else "[APP]"
    return click.argument("app", metavar=metavar, required=required)(command)


def spark_options(command: F) -> F:
    """Add ``--master``, ``--remote`` and ``--conf``: where Spark runs, and its properties."""
    command = click.option(
        "--conf",
        multiple=True,
        metavar="KEY=VALUE",
        help="A property of Spark's, as spark-submit takes it. May be given more than once; not "
        "for credentials.",
    )(command)
    command = click.option(
        "--remote",
        envvar="SPARK_REMOTE",
        show_envvar=True,
        is_eager=True,
        metavar="URL",
        help="A Spark Connect server, sc://host:port, instead of a master.",
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
        raise click.UsageError("Spark runs in one place: give --master or --remote, not both.")
    context.params["remote"] = None  # what is named here counts more than a variable
    return value


def _resolve(context: click.Context, _: click.Parameter, value: str | None) -> str:
    if value:
        return value
    if value == "" or os.environ.get("RESERVATION_DATABASE_URL") == "":
        raise CommandError(
            "The database's address is empty: a variable that should hold it is not set, perhaps; "
            "name the database, or leave out --database-url and RESERVATION_DATABASE_URL"
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
