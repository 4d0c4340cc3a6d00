"""``reservation prune``: remove what is no longer needed and would otherwise grow without limit."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from psycopg import Connection

from cli.common.confirming import confirm, yes_option
from cli.common.durations import DurationType
from cli.common.errors import CommandError, debug_option
from cli.common.extras import require_extras
from cli.common.lazy import load
from cli.common.options import (
    batch_size_option,
    database_option,
    folder_option,
    json_option,
    optional_app_options,
)
from consumers.group.inspection.stored_positions import read_positions, reads_of
from reservation.app_path import load_component
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import StoreReplacedError
from reservation.maintenance.pruning import (
    ALWAYS,
    Prune,
    Pruned,
    prune_archived,
    prune_cancelled,
    prune_http_requests,
    prune_passes,
    prune_reservations,
    prune_states,
    readers,
)
from reservation.messages.message import printable
from reservation.postgres.connection import connect
from reservation.store.schema.identity import store_id
from reservation.store.schema.install import check_installed
from spark_jobs.common.declaration import Declaration

if TYPE_CHECKING:
    from spark_jobs.archive.archive_folder import Archive

# Any: it decorates a command, whatever that takes.
F = TypeVar("F", bound=Callable[..., Any])

# How many differing messages the error names in its one line; --json prints all of them.
_NAMED = 20

_TAKES_EFFECT_AGAIN = (
    "A reissue of a command whose reservation is removed takes effect again, and `reservation "
    "reconcile` finds the command without one."
)


def _age_option(name: str, parameter: str, help_: str) -> Callable[[F], F]:
    """Return an option for the age from which something is removed."""
    return click.option(
        f"--{name}",
        parameter,
        type=DurationType(at_least=timedelta(hours=1)),
        metavar="DURATION",
        help=help_,
    )


@click.command()
@optional_app_options
@_age_option(
    "reservations-older-than",
    "reservations",
    "Remove the reservations of APP that are older than this, such as 90d or 36h. A reissue "
    "of their commands takes effect again.",
)
@_age_option(
    "cancelled-older-than",
    "cancelled",
    "Remove scheduled messages that were cancelled, and series that were stopped, longer ago than "
    "this, such as 90d. The same id can be scheduled again then.",
)
@_age_option(
    "http-requests-older-than",
    "http_requests",
    "Remove the HTTP requests with an idempotency key that are older than this, and their answers.",
)
@_age_option(
    "passes-older-than",
    "passes",
    "Remove the passes that subscriptions of APP recorded longer ago than this. Their "
    "messages are handled again if they are read again.",
)
@folder_option(
    "--archived",
    what="Remove the commands of APP that are in this archive, made by `reservation archive`. With "
    "--reservations-older-than, remove only reservations that are in it too.",
)
@click.option(
    "--apply",
    is_flag=True,
    help="Remove it. Without this option, only print what would be removed.",
)
@yes_option
@batch_size_option(100_000, "How many messages to examine in one transaction.")
@database_option
@json_option
@debug_option
def prune(
    app: str | None,
    app_dir: str,
    reservations: timedelta | None,
    cancelled: timedelta | None,
    http_requests: timedelta | None,
    passes: timedelta | None,
    archived: Path | None,
    apply: bool,
    yes: bool,
    batch_size: int,
    database_url: str,
    as_json: bool,
) -> None:
    """Remove what is no longer needed and would otherwise grow without limit.

    Prints what would be removed. With --apply it is removed.

    Processed messages are removed by day, once the day is older than their handlers keep and all
    its messages are handled. Partitions for the coming days are created.

    Versions of states are removed for the component APP, such as bank:account, once they are older
    than the window that it declares.

    Reservations are removed only with --reservations-older-than, for the component APP. A
    reservation stream is removed as a whole, if its copy was handled and is not a dead letter. A
    reissue of its command takes effect again.

    Scheduled messages that were cancelled, and series of recurring commands that were stopped, are
    removed only with --cancelled-older-than.

    HTTP requests are removed only with --http-requests-older-than. One that is sent again is
    answered anew, with what became of its command.

    Passes, which record the messages of subscribed categories that no event followed from, are
    removed only with --passes-older-than, for the component APP. A message whose pass is removed is
    handled again if a position is set back, and `reservation reconcile` finds it without an effect.

    Archived commands are removed only with --archived, except the last of each stream. Messages
    that are not archived are kept, and so are those that a consumer with a position has yet to
    read. A subscriber that has never started has no position. So --apply asks for confirmation;
    without a terminal, give --yes. Each message is compared with the archive: one that differs is
    kept and named, and the exit status is 2.

    Consumers may run meanwhile. The work is done in small transactions; the command can be stopped
    and started again at any time. Needs the owner of the store.

    \b
    Examples:
      reservation prune
      reservation prune --apply
      reservation prune bank:account --reservations-older-than 90d --apply
      reservation prune --http-requests-older-than 30d --apply
      reservation prune bank:account --archived /var/lib/reservation/archive --apply --yes
    """
    for name, value in (
        ("reservations-older-than", reservations),
        ("passes-older-than", passes),
        ("archived", archived),
    ):
        if app is None and value is not None:
            raise click.UsageError(f"--{name} needs APP, such as bank:account")
    things: list[Prune] = list(ALWAYS)
    archive = None
    if app is not None:
        component = load_component(app, app_dir)
        things.append(prune_states(component))
        if archived is not None:
            archive = _archive(archived, component)
            things = [prune_archived(component, archive, reservations)]
        elif reservations is not None:
            things.append(prune_reservations(component, reservations))
        if passes is not None:
            things.append(prune_passes(component, passes))
        if reservations is not None and not as_json:
            click.echo(_TAKES_EFFECT_AGAIN, err=True)
    if cancelled is not None:
        things.append(prune_cancelled(cancelled))
    if http_requests is not None:
        things.append(prune_http_requests(http_requests))
    totals: dict[tuple[str, str, str], int] = {}
    notes: list[Pruned] = []
    differing: list[int] = []
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        if archive is not None:
            store = store_id(connection)
            archive.require_store(None if store is None else str(store))
        if app is not None:
            _refuse_foreign(connection, component, app)
            if archive is not None:
                own = (
                    declarations(component).reservation_categories
                    if reservations is not None
                    else []
                )
                lines = _read_by(connection, [declarations(component).command_category, *own])
                if apply and not yes:
                    confirm(lines, "Remove what is archived of them")
                elif not as_json:
                    click.echo("\n".join(lines), err=True)
        for step in (step for thing in things for step in thing(connection, apply, batch_size)):
            key = step.kind, step.of, step.unit
            totals[key] = totals.get(key, 0) + step.count
            differing += step.differing
            if step.note:
                notes.append(step)
            elif apply and not as_json:
                count = _counted(totals[key], step.unit)
                click.echo(f"{step.kind} of {step.of}: {count}", err=True)
    if as_json:
        summary = _as_json(apply, totals, notes, reservations)
        click.echo(json.dumps(summary if archive is None else {**summary, "differing": differing}))
    else:
        click.echo("\n".join(_sentences(apply, totals, notes)))
    if differing:
        raise CommandError(_differing(differing, archived))


def _refuse_foreign(connection: Connection[Any], component: Component, app: str) -> None:
    """Refuse to prune by positions of another log."""
    for stored in read_positions(connection, reads_of(component)):
        if stored.foreign:
            raise StoreReplacedError(stored.consumer, stored.category, stored.position, app)


def _read_by(connection: Connection[Any], categories: list[str]) -> list[str]:
    """Return who reads categories, and that there may be others."""
    lines = []
    for category, known, without_position in readers(connection, categories):
        read_by = ", ".join(map(printable, known)) or "no consumer"
        lines.append(f"{printable(category)} is read by {read_by}")
        lines += [
            f"{printable(name)} subscribes to {printable(category)} and has no position there"
            for name in without_position
        ]
    lines.append(
        "a subscriber that has no position, because it has never started, will not read what is "
        "removed"
    )
    return lines


def _archive(folder: Path, component: Component) -> "Archive":
    """Return an archive, once its files are known to be those that were archived."""
    require_extras("parquet")
    read_archive = load("spark_jobs.archive.archive_folder:read_archive")
    return cast(
        "Archive", read_archive(folder, component.name, Declaration.of(component).to_json())
    )


def _sentences(
    apply: bool, totals: dict[tuple[str, str, str], int], notes: list[Pruned]
) -> Iterator[str]:
    done = "removed" if apply else "would be removed"
    found = {key: count for key, count in totals.items() if count}
    for (kind, of, unit), count in found.items():
        yield f"{kind} of {of}: {_counted(count, unit)} {done}"
    for note in notes:
        yield f"{note.kind} of {note.of}: {note.note}"
    if not found:
        yield f"Nothing {'was' if apply else 'is'} to be removed."
    elif not apply:
        yield "Nothing is changed; remove it with --apply."


def _differing(positions: list[int], archived: Path | None) -> str:
    named = ", ".join(str(position) for position in positions[:_NAMED])
    more = f" and {len(positions) - _NAMED:,} more" if len(positions) > _NAMED else ""
    return (
        f"Kept {_counted(len(positions), 'messages')} of the store, because the archive in "
        f"{archived} holds other messages at the same global positions: {named}{more}; find out "
        f"which of the two was changed"
    )


def _counted(count: int, unit: str) -> str:
    return f"{count:,} {unit if count > 1 else unit.removesuffix('s')}"


def _as_json(
    apply: bool,
    totals: dict[tuple[str, str, str], int],
    notes: list[Pruned],
    reservations: timedelta | None,
) -> dict[str, object]:
    pruned = [
        {"kind": kind, "of": of, "count": count, "unit": unit}
        for (kind, of, unit), count in totals.items()
        if count
    ]
    kept = [{"kind": note.kind, "of": note.of, "why": note.note} for note in notes]
    warning = {} if reservations is None else {"warning": _TAKES_EFFECT_AGAIN}
    return {"applied": apply, "pruned": pruned, "kept": kept, **warning}
