"""``reservation pause`` and ``resume``: stop what consumers do for a while, and let it go on."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from typing import Any, TypeVar

import click

from cli.common.durations import in_two_units
from cli.common.errors import debug_option
from cli.common.options import database_option, json_option
from consumers.pauses import administration
from consumers.pauses.pause import Scope, StoredPause
from reservation.postgres.connection import connect
from reservation.store.schema.install import check_installed

F = TypeVar("F", bound=Callable[..., Any])


def _scope_options(command: F) -> F:
    """Add the argument and the options that say what is meant; the command takes ``scope``."""

    @wraps(command)
    def scoped(
        *arguments: Any,
        component: str,
        category: str | None,
        type_: str | None,
        entity: str | None,
        **options: Any,
    ) -> Any:
        return command(*arguments, scope=Scope(component, category, type_, entity), **options)

    decorated: Any = scoped
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]  # what click makes of it is called by click


_OPTIONS = [
    click.argument("component"),
    click.option("--category", help="Only what it reads of this category."),
    click.option("--type", "type_", help="Only messages of this type."),
    click.option(
        "--entity", metavar="STREAM", help="Only messages of this entity, such as account-123."
    ),
]


@click.command("pause")
@_scope_options
@click.option("--reason", required=True, help="Why; it is shown wherever the lag is shown.")
@database_option
@json_option
@debug_option
def pause_command(scope: Scope, reason: str, database_url: str, as_json: bool) -> None:
    """Pause the consumers of COMPONENT, of one category, or of a type or an entity.

    COMPONENT is a name, such as account, of a component or of a version of a read model. Within a
    second, every process stops to read its messages, and to handle its dead letters; calls that
    have begun end. With --type or --entity the handler is not called for such messages, and later
    ones of the same entity wait behind them; commands are still reserved. Nothing is lost, and
    nothing becomes a dead letter. Scheduled messages and recurring commands are still written.

    The pause is stored, so it outlives all processes, until `reservation resume`. Several pauses
    may concern a message, which is handled when all are over. Needs the rights of an operator. The
    exit status is 2 if the store does not know the names, or they are paused already.

    \b
    Examples:
      reservation pause account --reason "provider migration"
      reservation pause account --category account:command --reason "storm of reissues"
      reservation pause account --type Withdraw --reason "provider is down"
      reservation pause account --entity account-123 --reason "dispute 4711"
    """
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        paused = administration.pause(connection, scope, reason)
    if as_json:
        click.echo(json.dumps({"paused": pause_as_json(paused)}))
    else:
        click.echo(f"Paused {scope}.")


@click.command("resume")
@_scope_options
@click.option("--all", "every", is_flag=True, help="End all pauses of COMPONENT.")
@database_option
@json_option
@debug_option
def resume_command(scope: Scope, every: bool, database_url: str, as_json: bool) -> None:
    """Resume what was paused of COMPONENT under the same options, or with --all everything.

    Within two seconds, every process goes on from where it was, in the order of each entity. The
    exit status is 2 if nothing is paused under these names. Needs the rights of an operator.

    \b
    Examples:
      reservation resume account
      reservation resume account --type Withdraw
      reservation resume account --all
      reservation status --json | jq '.pauses'
    """
    if every and scope != Scope(scope.component):
        raise click.UsageError("Give --all, or options that say which pause to end, not both")
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        ((now,),) = connection.execute("SELECT clock_timestamp()").fetchall()
        resumed = administration.resume(connection, scope, every=every)
    if as_json:
        click.echo(json.dumps({"resumed": [pause_as_json(one) for one in resumed]}))
        return
    for one in resumed:
        lasted = in_two_units((now - one.paused_at).total_seconds())
        click.echo(f"Resumed {one.scope}, {one}, {lasted} ago.")


def pause_as_json(pause: StoredPause) -> dict[str, object]:
    """Return a pause as commands print it."""
    return {
        **asdict(pause.scope),
        "reason": pause.reason,
        "pausedBy": pause.paused_by,
        "pausedAt": pause.paused_at.isoformat(),
    }
