"""``reservation archive``: old messages to Parquet, verified before any of them may go."""

import json
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console

from cli.common.errors import NOT_IN_ORDER, debug_option, exit_on_sigterm
from cli.common.extras import require_extras
from cli.common.options import app_options, database_option, json_option, spark_options
from cli.spark.progress import progress
from cli.store.prune import AgeType
from reservation.app_path import load_component
from reservation.messages.message import printable
from spark_jobs.common.address import address_for_workers
from spark_jobs.jobs import archive as archiving
from spark_jobs.jobs.archive import ArchiveResult
from spark_jobs.reconciliation.run import Run

_REISSUES = (
    "After that, a reissue of a command that was reserved before {before} takes effect again. "
    "`reservation reconcile --details` tells the longest gap between two sends of one key, which "
    "the age has to exceed."
)


class TimestampType(click.ParamType[datetime]):
    """A date or time in UTC, as in 2026-01-31, or how long ago, as in 90d or 36h."""

    name = "moment"

    def convert(
        self, value: str | datetime, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Return it as a time."""
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        if value[:1].isdecimal() and value[-1:] in "dh":
            return datetime.now(UTC) - AgeType().convert(value, param, ctx)
        return self.fail(f"{value!r} is no date; write 2026-01-31, or an age as in 90d", param, ctx)


@click.command()
@app_options
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    required=True,
    help="The folder of the archive. One that is there is gone on with.",
)
@click.option(
    "--before",
    type=TimestampType(),
    metavar="DATE",
    required=True,
    help="Archive what is older, as in 2026-01-31 (UTC), or an age as in 90d or 36h.",
)
@database_option
@spark_options
@json_option
@click.pass_context
@debug_option
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
    """Copy old messages of the component APP to Parquet, by category and day, with Spark.

    Commands, reservations and events are archived that are older than a date, and of each category
    only those with which it begins and that its consumer has read. A further run adds what has
    become old since. Nothing is removed from the store.

    What was written is read back, counted and hashed, and held against what the server counts and
    hashes of its own rows. If all is the same, it says with which commands messages may be removed.
    `reservation reconcile --archive` reads archive and store together.

    Exit status: 0 archived and verified; 1 something is not as it should be, and nothing was added;
    2 it could not run. Needs Java 17 and the extra `spark`.

    \b
    Examples:
      reservation archive bank:account --to /var/lib/reservation/archive --before 2026-01-01
      reservation archive bank:account --to /var/lib/reservation/archive --before 90d --json
      reservation reconcile bank:account --archive /var/lib/reservation/archive
    """
    require_extras("spark", *(["connect"] if remote else []))
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
    is_told = context.get_parameter_source("database_url") is ParameterSource.COMMANDLINE
    if is_told and address_for_workers(database_url) is not None:  # it holds no secret
        place += ["--database-url", database_url]
    if as_json:
        click.echo(json.dumps(_as_json(result, folder, place)))
    else:
        click.echo("\n".join(_sentences(result, folder, place)))
    if result.differences:
        context.exit(NOT_IN_ORDER)


def _sentences(result: ArchiveResult, folder: Path, place: list[str]) -> Iterator[str]:
    for one in result.categories:
        yield (
            f"{one.category}: {one.added:,} messages archived, {one.messages:,} in all, up to "
            f"global position {one.last}"
        )
    if result.differences:
        yield from (f"Not as it should be: {printable(one)}" for one in result.differences)
        yield "Nothing was added to the archive, and nothing may be removed from the store."
        return
    yield f"Verified: what is in {folder} is what the store had, by count and content."
    if not result.removable:
        yield "Nothing may be removed from the store: no consumer of ours keeps its position there."
        return
    commands, reservations = _offered(result, place)
    yield "To remove the archived commands from the store, but the last of each stream:"
    yield f"  {commands}"
    yield f"To remove the archived reservations too. {_warning(result)}"
    yield f"  {reservations}"


def _offered(result: ArchiveResult, place: list[str]) -> tuple[str, str]:
    """Return what removes the archived commands, and what removes the reservations too."""
    age = max(result.time - result.before, timedelta(hours=1))
    told = f"{age.days}d" if age.days else f"{age // timedelta(hours=1)}h"
    prune = ["reservation", "prune", *place]
    return (
        shlex.join([*prune, "--apply"]),
        shlex.join([*prune, "--reservations-older-than", told, "--apply"]),
    )


def _warning(result: ArchiveResult) -> str:
    return _REISSUES.format(before=_moment(result.before))


def _moment(time: datetime) -> str:
    return time.isoformat().removesuffix("+00:00") + "Z"


def _as_json(result: ArchiveResult, folder: Path, place: list[str]) -> dict[str, object]:
    offered = None
    if result.removable:
        commands, reservations = _offered(result, place)
        offered = {
            "commands": commands,
            "commandsAndReservations": reservations,
            "reissuesTakeEffectBefore": _moment(result.before),
            "warning": _warning(result),
        }
    return {
        "component": result.component,
        "time": _moment(result.time.astimezone(UTC)),
        "before": _moment(result.before),
        "archive": str(folder),
        "verified": not result.differences,
        "categories": [
            {
                "category": one.category,
                "archived": one.added,
                "messages": one.messages,
                "lastGlobalPosition": one.last,
            }
            for one in result.categories
        ],
        "differences": result.differences,
        "offered": offered,
    }
