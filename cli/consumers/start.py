"""``reservation start``: run the consumers of components."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from psycopg import Connection

from cli.common.archives import archives_option, opener
from cli.common.durations import DurationType
from cli.common.errors import debug_option, is_debug
from cli.common.extras import require_extras
from cli.common.options import app_dir_option, batch_size_option, database_option
from consumers.archived import Archives
from consumers.group.compatibility import check_members
from consumers.group.inspection.stored_positions import ConsumerId, categories
from consumers.group.sizes import checked_sizes
from consumers.options import DEFAULT_BATCH_BYTES, Options
from consumers.program import check_names_differ
from consumers.read_models.archives import (
    archived_parts,
    check_whole,
    is_behind,
    warn_of_removed,
)
from consumers.runtime.observability.logs import Log, configure_logs
from consumers.supervisor.assignment import Assignment
from consumers.supervisor.supervisor import Address, run
from reservation.app_path import load_component
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import DeclarationError
from reservation.inspection.process_declaration import ProcessDeclaration
from reservation.maintenance.event_types import check_event_types
from reservation.maintenance.reservation_names import check_names
from reservation.postgres.connection import connect
from reservation.read_models.made_versions import ArchivedPart
from reservation.read_models.schemas import prepare
from reservation.store.schema.preconditions import check_preconditions


@click.command()
@click.argument("apps", metavar="APP...", nargs=-1, required=True)
@app_dir_option
@click.option(
    "--only",
    metavar="[commands|reserved|subscribed|CATEGORY]",
    help="Run only the consumers of commands, or only those of reserved copies, or those of the "
    "categories that APP subscribes to, or only those of the category with this name.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="How many processes run the consumers, and share the categories.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 1024),
    help="How many partitions a category gets when it is first consumed. Each is read by one "
    "process at a time. [default: 1]",
)
@database_option
@batch_size_option(10_000, "How many messages to handle in one transaction.")
@click.option(
    "--batch-bytes",
    type=click.IntRange(1, 2**30),
    default=DEFAULT_BATCH_BYTES,
    show_default="16777216, which is 16 MiB",
    metavar="BYTES",
    help="How many bytes of data and metadata to handle in one transaction. A batch ends with the "
    "message that reaches them, however few it has.",
)
@click.option(
    "--grace",
    type=DurationType(at_most=timedelta(days=1), plain_seconds=True),
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="How long a consumer may take to finish its batch when it is stopped, such as 0.5s or 2m. "
    "A plain number is in seconds.",
)
@click.option(
    "--stuck-after",
    type=DurationType(at_least=timedelta(seconds=1), at_most=timedelta(days=1), plain_seconds=True),
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="How long the handler of a message may give no sign of life before its process is "
    "replaced. That counts as an attempt at the message.",
)
@click.option(
    "--stop-on-error",
    is_flag=True,
    help="Stop at a message that cannot be handled, with the position before it.",
)
@click.option(
    "--errors",
    type=click.Choice(["place", "full"]),
    default="place",
    show_default=True,
    envvar="RESERVATION_ERRORS",
    show_envvar=True,
    help="What a dead letter keeps of a handler's exception: its class and the place in your code "
    "where it was raised, or also its text and its traceback, which may hold data and secrets.",
)
@archives_option(
    "Read this archive, made by `reservation archive`, before the store, which may lack messages "
    "that were removed. Only for read models."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The least severe level to log, of the consumers and of your code.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Serve /metrics for Prometheus, and /livez and /readyz for probes, at this port. 0 takes "
    "any free port. Needs the extra `metrics`.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="The address to serve at; 0.0.0.0 or :: for requests from outside, as in a pod.",
)
@debug_option
def start(
    apps: tuple[str, ...],
    app_dir: str,
    only: str | None,
    workers: int,
    partitions: int | None,
    database_url: str,
    batch_size: int,
    batch_bytes: int,
    grace: timedelta,
    stuck_after: timedelta,
    stop_on_error: bool,
    errors: str,
    archives: tuple[Path, ...],
    log_level: str,
    metrics_port: int | None,
    metrics_host: str,
) -> None:
    """Run the consumers of the components APP, until SIGTERM or SIGINT.

    APP is module:attribute, as in bank:account. One consumer reads a component's commands and
    reserves each by its idempotence key; another handles the reserved copies; and there is one for
    each category that the component subscribes to. All run in one process, each in a thread of its
    own. If the process dies, it is started again. Logs go to standard error: readable lines on a
    terminal, JSON elsewhere.

    Processes with the same component and database share its categories, whether started with
    --workers or elsewhere. Each takes about as many partitions as the others, of all categories
    together, and shares are redistributed within seconds when processes start or end. A process
    without a partition stands by. The number of partitions is fixed when a category is first
    consumed; `reservation partitions` changes it.

    On SIGTERM or SIGINT, a consumer finishes its batch. If that takes longer than --grace, or on a
    second signal, the batch is rolled back and read again at the next start.

    The command refuses to start if the store has reservations under other names than APP declares,
    because reissues of their commands would take effect again. Declare the former key with
    Key(…, former_key=…). It also refuses if a sample of the entity's events shows types that APP
    does not declare, because entities cannot be loaded without them. Declare former names with
    message(…, former_names=…). And it refuses to start beside a process of APP that makes keys
    differently, or if one of the two cannot read what the other writes: see `reservation check`.

    If the database becomes unavailable, the consumers wait for it.

    A message that cannot be handled becomes a dead letter. Later messages of the same entity are
    parked behind it; all others are handled: see `reservation dead-letters`. With --stop-on-error
    the consumer stops instead, with the position before the message.

    A message that ends the process, or whose handler gives no sign of life for --stuck-after,
    becomes a dead letter after its attempts too. All consumers of the process are started again,
    and only what they had in flight is handled one by one.

    With --archive, a read model reads messages that were removed from the store from there, in the
    order of global positions. Give it until the read model is past the archive, and to retry dead
    letters of such messages.

    With --debug, the traceback of each failed attempt is logged. It may hold data.

    Exit status: 0 it was stopped by a signal; 1 a message cannot be handled and --stop-on-error is
    given, or a consumer died repeatedly; 2 it could not run.

    \b
    Examples:
      reservation start bank:account --database-url postgresql://localhost/bank
      reservation start bank:account --only reserved --app-dir /srv/bank
      reservation start bank:account shop:orders shop:stock --workers 4 --partitions 16
      reservation start bank:account --errors full --log-level debug
      reservation start hotel:occupancy --archive /var/lib/reservation/archive
    """
    if metrics_port is not None:
        require_extras("metrics")
    configure_logs(level=log_level)
    components = [load_component(app, app_dir) for app in apps]
    check_names_differ(components)
    open_archives = opener(archives)
    archived = None
    if open_archives is not None:
        _refuse_components(components)
        archived = open_archives()
    read = _reads(components, only)
    with connect(database_url, autocommit=True) as connection:
        check_preconditions(connection)
        for app, component in zip(apps, components, strict=True):
            mine = [category for name, category in read if name == component.name]
            check_names(connection, component)
            check_event_types(connection, component)
            sizes = checked_sizes(connection, component, mine, partitions)
            check_members(connection, component.name, ProcessDeclaration.of(component))
            prepare(connection, component, _parts(connection, component, archived))
            _warn_of_idle(app, component, sizes, workers)
    options = Options(
        batch_size,
        batch_bytes,
        partitions,
        stop_on_error,
        keep_text=errors == "full",
        debug=is_debug(),
        grace=grace.total_seconds(),
        stuck_after=stuck_after.total_seconds(),
        log_level=log_level,
    )
    run(
        Assignment(apps, app_dir, tuple(read), database_url, options, open_archives),
        workers,
        None if metrics_port is None else Address(metrics_host, metrics_port),
    )


def _refuse_components(components: Sequence[Component]) -> None:
    """Refuse an archive for components, which have handled what was removed."""
    for component in components:
        if declarations(component).model is None:
            raise DeclarationError(
                f"--archive is for read models, and {component.name} is a component; start it "
                f"separately, without --archive"
            )


def _parts(
    connection: Connection[Any], component: Component, archives: Archives | None
) -> Sequence[ArchivedPart]:
    """Return the archived parts of what a component reads, once they are checked if need be."""
    if archives is None:
        warn_of_removed(connection, component)
        return ()
    parts = archived_parts(connection, component, archives)
    if is_behind(connection, component, parts):
        check_whole(connection, component, archives)
    return parts


def _warn_of_idle(app: str, component: Component, sizes: Mapping[str, int], workers: int) -> None:
    """Warn of processes that will have no partition."""
    for category, size in sizes.items():
        if workers > size:
            Log(component.name, category).warning(
                "workers_without_partition",
                workers=workers,
                partitions=size,
                hint=f"stop the consumers and run `reservation partitions {app} {workers}`",
            )


def _reads(components: Sequence[Component], only: str | None) -> list[ConsumerId]:
    """Return the consumers to run, those of a component one after the other."""
    chosen = [
        (component.name, category)
        for component in components
        for category in _categories(component, only)
    ]
    if chosen or only is None:
        return chosen
    names = ", ".join(repr(component.name) for component in components)
    kinds = {
        "commands": "are no commands",
        "reserved": "is no reservation category",
        "subscribed": "is no subscription",
    }
    if only in kinds:
        raise DeclarationError(
            f"There {kinds[only]} in {names}, so --only {only} selects no consumer; leave it out"
        )
    known = ", ".join(name for component in components for name in categories(component))
    raise click.UsageError(
        f"--only {only} is neither commands, reserved or subscribed, nor a category that the "
        f"components read: {known}"
    )


def _categories(component: Component, only: str | None) -> Sequence[str]:
    """Return those of a component's categories that are to be read."""
    declared = declarations(component)
    read, reserved = categories(component), declared.reservation_categories
    subscribed = declared.subscribed_categories
    match only:
        case None:
            return read
        case _ if only in read:
            return [only]
        case "commands":
            return [name for name in read if name not in (*reserved, *subscribed)]
        case "reserved":
            return reserved
        case "subscribed":
            return subscribed
    return []
