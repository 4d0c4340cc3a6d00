"""Check a component, and print what was found."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from cli.check.as_json import as_json as to_json
from cli.check.table import render
from cli.common.errors import NOT_IN_ORDER, exit_on_sigterm
from cli.common.extras import require_extras
from cli.common.lazy import load
from cli.common.tables import console
from consumers.checking.check import check
from reservation.app_path import load_component
from reservation.component import Component
from reservation.inspection.tally import Tally
from reservation.postgres.connection import connect
from reservation.store.schema.install import check_installed


def check_app(
    context: click.Context,
    app: str,
    app_dir: str,
    sample: int,
    full: bool,
    database_url: str,
    master: str,
    remote: str | None,
    conf: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run `reservation check`; the arguments are its options."""
    if full:
        _refuse(context, "with", "sample")
        require_extras("spark", *(["connect"] if remote else []))
    else:
        _refuse(context, "without", "master", "remote", "conf")
    exit_on_sigterm()
    component = load_component(app, app_dir)
    options = {"master": master, "remote": remote, "conf": conf}
    progress = Console(stderr=True)
    with (
        connect(database_url, autocommit=True) as connection,
        contextlib.ExitStack() as stack,
    ):
        check_installed(connection)
        tallies, snapshot = None, None
        if full:
            decoding = _decoded(progress, component, app, Path(app_dir), database_url, options)
            tallies, snapshot = stack.enter_context(decoding)
        with progress.status("Looking at the store…") as status:  # silent but on a terminal
            report = check(
                connection,
                component,
                app,
                sample=sample,
                tallies=tallies,
                snapshot=snapshot,
                began=lambda what: status.update(f"Looking at {what}…"),
            )
    if as_json:
        click.echo(json.dumps(to_json(report)))
    else:
        console().print(render(report))
    if full:
        load("cli.spark.execution.prepare:prepare_later")(master, remote)
    if not report.in_order:
        context.exit(NOT_IN_ORDER)


@contextlib.contextmanager
def _decoded(
    printer: Console,
    component: Component[Any],
    app: str,
    app_dir: Path,
    database_url: str,
    options: Mapping[str, Any],  # Any: each option has a type of its own
) -> Iterator[tuple[dict[str, Tally], str]]:
    """Decode every message, with Spark, which is imported only here."""
    decoded, progress = (
        load("spark_jobs.jobs.check:decoded"),
        load("cli.spark.execution.progress:progress"),
    )
    with contextlib.ExitStack() as stack:
        with progress(printer) as watch:
            found = stack.enter_context(
                decoded(component, app, app_dir, database_url, watch=watch, **options)
            )
        yield found


def _refuse(context: click.Context, when: str, *names: str) -> None:
    """Refuse options that have no effect."""
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} has no effect {when} --full; leave out one")
