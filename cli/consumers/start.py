"""``reservation start``: run a component's consumers."""

from datetime import timedelta

import click

from cli.common.durations import DurationType
from cli.common.errors import debug_option, is_debug
from cli.common.extras import require_extras
from cli.common.options import app_options, batch_size_option, database_option
from consumers.batch.batch_size import DEFAULT_BATCH_BYTES
from consumers.group.compatibility import check_members
from consumers.group.inspection.stored_positions import categories
from consumers.group.membership import GroupShare
from consumers.group.sizes import checked_sizes
from consumers.runtime.observability.logs import Log, configure_logs
from consumers.supervisor.supervisor import Address, Assignment, run
from reservation.app_path import load_component
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import DeclarationError
from reservation.inspection.process_declaration import ProcessDeclaration
from reservation.maintenance.event_types import check_event_types
from reservation.maintenance.reservation_names import check_names
from reservation.postgres.connection import connect
from reservation.store.schema.preconditions import check_preconditions

# The default number of partitions of a category that several processes share: enough for some more
# processes, and few enough to read at a glance.
SHARED = 16


@click.command()
@app_options
@click.option(
    "--only",
    metavar="[commands|reserved|subscribed|CATEGORY]",
    help="Run only the consumer of the commands, or only that of the reserved copies, or those of "
    "the categories that APP subscribes to, or only that of the category with this name.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="How many processes share each category.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 1024),
    help="How many partitions a category gets when it is first consumed. Processes share "
    "partitions. [default: 1; with several workers, 16]",
)
@click.option(
    "--member",
    type=click.IntRange(0),
    help="Read only this partition, from 0, as a member of a group of a fixed size.",
)
@click.option("--size", type=click.IntRange(1, 1024), help="The size of that group.")
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
    app: str,
    app_dir: str,
    only: str | None,
    workers: int,
    partitions: int | None,
    member: int | None,
    size: int | None,
    database_url: str,
    batch_size: int,
    batch_bytes: int,
    grace: timedelta,
    stop_on_error: bool,
    errors: str,
    log_level: str,
    metrics_port: int | None,
    metrics_host: str,
) -> None:
    """Run the consumers of the component APP, until SIGTERM or SIGINT.

    APP is module:attribute, as in bank:account. One consumer reads the component's commands and
    reserves each by its idempotence key; another handles the reserved copies; and there is one for
    each category that the component subscribes to. Each runs in a process of its own. Logs go to
    standard error: readable lines on a terminal, JSON elsewhere.

    Processes with the same component and database share its categories, whether started with
    --workers or elsewhere. Each takes a fair share of the partitions, and shares are redistributed
    within seconds when processes start or end. A process without a partition stands by. The number
    of partitions is fixed when a category is first consumed; `reservation partitions` changes it.

    On SIGTERM or SIGINT, a consumer finishes its batch. If that takes longer than --grace, or on a
    second signal, the batch is rolled back and read again at the next start.

    The command refuses to start if the store has reservations under other names than APP declares,
    because reissues of their commands would take effect again. Name the former form with
    Key(…, formerly=…). It also refuses if a sample of the entity's events shows types that APP does
    not declare, because entities cannot be loaded without them. Name former classes with
    message(…, was=…). And it refuses to start beside a process of APP that makes keys differently,
    or if one of the two cannot read what the other writes: see `reservation check`.

    If the database becomes unavailable, the consumers wait for it.

    A message that cannot be handled becomes a dead letter. Later messages of the same entity are
    parked behind it; all others are handled: see `reservation dead-letters`. With --stop-on-error
    the consumer stops instead, with the position before the message.

    With --debug, the traceback of each failed attempt is logged. It may hold data.

    Exit status: 0 it was stopped by a signal; 1 a message cannot be handled and --stop-on-error is
    given, or a consumer died repeatedly; 2 it could not run.

    \b
    Examples:
      reservation start bank:account --database-url postgresql://localhost/bank
      reservation start bank:account --only reserved --app-dir /srv/bank
      reservation start bank:account --workers 4
      reservation start bank:account --member 1 --size 3
      reservation start bank:account --errors full --log-level debug
    """
    if metrics_port is not None:
        require_extras("metrics")
    configure_logs(level=log_level)
    share = _share(workers, partitions, member, size)
    component = load_component(app, app_dir)
    read = _categories(component, only)
    with connect(database_url, autocommit=True) as connection:
        check_preconditions(connection)
        check_names(connection, component)
        check_event_types(connection, component)
        sizes = checked_sizes(connection, component, read, share)
        check_members(connection, component.name, ProcessDeclaration.of(component))
    for category, size in sizes.items():
        if workers > size:
            Log(component.name, category).warning(
                "workers_without_partition",
                workers=workers,
                partitions=size,
                hint=f"stop the consumers and run `reservation partitions {app} {workers}`",
            )
    run(
        [
            Assignment(
                app,
                app_dir,
                component.name,
                category,
                database_url,
                batch_size,
                batch_bytes,
                log_level,
                grace.total_seconds(),
                share,
                stop_on_error,
                errors == "full",
                is_debug(),
            )
            for category in read
            for _ in range(workers)
        ],
        None if metrics_port is None else Address(metrics_host, metrics_port),
    )


def _share(
    workers: int, partitions: int | None, member: int | None, size: int | None
) -> GroupShare:
    """Return which share of its group each consumer takes."""
    if member is None and size is None:
        return GroupShare(partitions, to_begin_with=max(workers, SHARED) if workers > 1 else 1)
    if member is None or size is None or workers > 1 or partitions is not None:
        raise click.UsageError(
            "--member and --size go together, and with neither --workers nor --partitions"
        )
    if member >= size:
        raise click.UsageError(f"The members of a group of {size} are 0 to {size - 1}")
    return GroupShare(size, member)


def _categories(component: Component, only: str | None) -> list[str]:
    declared = declarations(component)
    read, reserved = categories(component), declared.reservation_categories
    subscribed = declared.subscribed_categories
    kinds = {
        "commands": [name for name in read if name not in (*reserved, *subscribed)],
        "reserved": reserved,
        "subscribed": subscribed,
    }
    if only is None:
        return read
    chosen = [only] if only in read else kinds.get(only)
    if chosen is None:
        raise click.UsageError(
            f"--only {only} is neither commands, reserved or subscribed, nor a category that the "
            f"component {component.name!r} reads: {', '.join(read)}"
        )
    if not chosen:
        what = {
            "commands": "handles no commands",
            "reserved": "has no reservation category",
            "subscribed": "subscribes to no category",
        }[only]
        raise DeclarationError(
            f"The component {component.name!r} {what}, so there is no consumer of one; leave out "
            f"--only {only}"
        )
    return chosen
