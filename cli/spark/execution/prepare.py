"""Store Java's classes and print where they are."""

import json

import click
from rich.console import Console

from spark_jobs.jobs.prepare import keep


def prepare(*, as_json: bool) -> None:
    """Run `reservation spark prepare`; see `spark_jobs.jobs.prepare`."""
    with Console(stderr=True).status("Starting Spark and storing its classes…"):
        stored = keep()
    size = stored.stat().st_size
    if as_json:
        click.echo(json.dumps({"file": str(stored), "bytes": size}))
    else:
        click.echo(f"{stored}: {size / 1e6:,.0f} MB")
