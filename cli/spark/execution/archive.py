"""Archive old messages, and print what was archived and what may be removed now."""

import json
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console

from cli.common.errors import NOT_IN_ORDER, exit_on_sigterm
from cli.common.extras import require_extras
from cli.spark.execution.prepare import prepare_later
from cli.spark.execution.progress import progress
from reservation.app_path import load_component
from reservation.messages.message import printable
from spark_jobs.common.address import address_for_workers
from spark_jobs.jobs import archive as archiving
from spark_jobs.jobs.archive import ArchiveResult
from spark_jobs.report.words import duration
from spark_jobs.run import Run

_REISSUES = (
    "After that, a reissue of a command that was reserved before {before} takes effect again. "
    "`reservation reconcile --details` prints the longest gap between two sends of one key; the "
    "age must exceed it."
)


def archive(
    context: click.Context,
    app: str,
    app_dir: str,
    folder: Path,
    before: datetime,
    database_url: str,
    master: str,
    remote: str | None,
    conf: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run `reservation archive`; the arguments are its options."""
    require_extras(*(["connect"] if remote else []))
    exit_on_sigterm()
    run = Run(
        load_component(app, app_dir),
        app,
        Path(app_dir),
        database_url,
        master=master,
        remote=remote,
        conf=conf,
    )
    with progress(Console(stderr=True)) as watch:
        result = archiving.archive(run, folder, before, watch)
    place = [app, *(["--app-dir", app_dir] if app_dir != "." else []), "--archived", str(folder)]
    was_given = context.get_parameter_source("database_url") is ParameterSource.COMMANDLINE
    if was_given and address_for_workers(database_url) is not None:  # it holds no secret
        place += ["--database-url", database_url]
    if as_json:
        click.echo(json.dumps(_as_json(result, folder, place)))
    else:
        click.echo("\n".join(_sentences(result, folder, place)))
    prepare_later(master, remote)
    if result.differences:
        context.exit(NOT_IN_ORDER)


def _sentences(result: ArchiveResult, folder: Path, place: list[str]) -> Iterator[str]:
    for archived in result.categories:
        yield (
            f"{archived.category}: {archived.added:,} messages archived, {archived.messages:,} in "
            f"all, up to global position {archived.last}"
        )
    if result.differences:
        yield from (f"Not in order: {printable(difference)}" for difference in result.differences)
        yield "Nothing was added to the archive, and nothing may be removed from the store."
        yield _held(result)
        return
    for category, positions in result.unreadable.items():
        yield (
            f"{category}: cannot be read, so the archive holds only where they are, and they stay "
            f"in the store: the messages at global positions {', '.join(map(str, positions))}"
        )
    if not any(archived.messages for archived in result.categories):
        yield (
            f"Nothing is archived, and nothing may be removed from the store: no message that the "
            f"consumers have read was stored before {_written(result.before)}."
        )
        yield _held(result)
        return
    yield f"Verified: what is in {folder} is what the store had, by count and content."
    yield _held(result)
    if not result.removable:
        yield "Nothing may be removed from the store: no consumer keeps its position there."
        return
    commands, reservations = _offered(result, place)
    yield "To remove the archived commands from the store, except the last of each stream:"
    yield f"  {commands}"
    yield f"To remove the archived reservations too. {_warning(result)}"
    yield f"  {reservations}"


def _held(result: ArchiveResult) -> str:
    return f"The snapshot of the store was held for {duration(result.snapshot_held)}."


def _offered(result: ArchiveResult, place: list[str]) -> tuple[str, str]:
    """Return what removes the archived commands, and what removes the reservations too."""
    age = max(result.time - result.before, timedelta(hours=1))
    older_than = f"{age.days}d" if age.days else f"{age // timedelta(hours=1)}h"
    prune = ["reservation", "prune", *place]
    return (
        shlex.join([*prune, "--apply"]),
        shlex.join([*prune, "--reservations-older-than", older_than, "--apply"]),
    )


def _warning(result: ArchiveResult) -> str:
    return _REISSUES.format(before=_written(result.before))


def _written(time: datetime) -> str:
    return time.isoformat().removesuffix("+00:00") + "Z"


def _as_json(result: ArchiveResult, folder: Path, place: list[str]) -> dict[str, object]:
    offered = None
    if result.removable:
        commands, reservations = _offered(result, place)
        offered = {
            "commands": commands,
            "commandsAndReservations": reservations,
            "reissuesTakeEffectBefore": _written(result.before),
            "warning": _warning(result),
        }
    return {
        "component": result.component,
        "time": _written(result.time.astimezone(UTC)),
        "before": _written(result.before),
        "archive": str(folder),
        "verified": not result.differences,
        "categories": [
            {
                "category": archived.category,
                "archived": archived.added,
                "messages": archived.messages,
                "lastGlobalPosition": archived.last,
            }
            for archived in result.categories
        ],
        "differences": result.differences,
        "unreadable": {name: list(found) for name, found in result.unreadable.items()},
        "snapshotHeldSeconds": result.snapshot_held.total_seconds(),
        "offered": offered,
    }
