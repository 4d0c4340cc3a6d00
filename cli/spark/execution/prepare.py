"""Store Java's classes: now, or in the background once a command has ended."""

import json

import click
from rich.console import Console

from cli.common.lazy import load
from spark_jobs.session.classes import store_in_background
from spark_jobs.session.settings import is_local


def prepare(*, as_json: bool) -> None:
    """Run `reservation spark prepare`; see `spark_jobs.jobs.prepare`."""
    keep = load("spark_jobs.jobs.prepare:keep")
    with Console(stderr=True).status("Starting Spark and storing its classes…"):
        stored = keep()
    size = stored.stat().st_size
    if as_json:
        click.echo(json.dumps({"file": str(stored), "bytes": size}))
    else:
        click.echo(f"{stored}: {size / 1e6:,.0f} MB")


def prepare_later(master: str | None, remote: str | None) -> None:
    """After a command that ran Spark on this machine, let the next one start faster."""
    runs_locally = remote is None and master is not None and is_local(master)
    if not (runs_locally and store_in_background()):
        return
    printer = Console(stderr=True)
    if printer.is_terminal:
        printer.print(
            "Java's classes are stored in the background, so that Spark starts faster the next "
            "time (reservation spark prepare).",
            style="dim",
        )
