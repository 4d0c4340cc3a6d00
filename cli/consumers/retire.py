"""``reservation retire``: remove what the store keeps of a component that does not run any more."""

import json
from typing import Any

import click
from psycopg import Connection

from cli.common.errors import CommandError, debug_option
from cli.common.options import database_option, json_option
from consumers.group.retiring import Retired, retire
from reservation.messages.message import printable
from reservation.postgres.connection import connect
from reservation.read_models.made_versions import versions
from reservation.store.schema.install import check_installed


@click.command("retire")
@click.argument("component")
@click.option(
    "--category",
    "categories",
    multiple=True,
    metavar="CATEGORY",
    help="Remove only what belongs to this category. Repeat it for several.",
)
@click.option(
    "--with-open-letters",
    is_flag=True,
    help="Also remove dead letters that nobody has retried or discarded.",
)
@click.option(
    "--apply",
    is_flag=True,
    help="Remove it. Without this option, only print what would be removed.",
)
@database_option
@json_option
@debug_option
def retire_command(
    component: str,
    categories: tuple[str, ...],
    with_open_letters: bool,
    apply: bool,
    database_url: str,
    as_json: bool,
) -> None:
    """Remove what the store keeps of COMPONENT, which does not run any more.

    COMPONENT is a name, such as account; its code is not needed. Its positions, members, dead
    letters and passes are removed, and without --category its processed messages, snapshots and
    states too. `reservation status` then no longer shows it. The messages stay, and so do
    the letters of messages that were handled with other data, and accepted findings.
    A component that is started again begins at the start of its categories.

    Prints what would be removed. With --apply it is removed, in one transaction. The command
    refuses while a process of the component runs, and while it has open dead letters. Needs the
    owner of the store.

    \b
    Examples:
      reservation retire account
      reservation retire account --apply
      reservation retire account --category accountDeposit --apply
    """
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        _refuse_read_model(connection, component)
        retired = retire(
            connection, component, categories, apply=apply, with_open_letters=with_open_letters
        )
    if as_json:
        click.echo(json.dumps(_as_json(retired, apply)))
    else:
        click.echo("\n".join(_sentences(retired, apply)))


# Any: rows of different types.
def _refuse_read_model(connection: Connection[Any], component: str) -> None:
    """Refuse to take the positions away from tables that stay."""
    for made in versions(connection):
        if made.schema == component:
            raise CommandError(
                f"{component} is a version of the read model {made.model}; remove it with its "
                f"tables: `reservation models drop {made.model} {made.version}`"
            )


def _sentences(retired: Retired, apply: bool) -> list[str]:
    read = ", ".join(map(printable, retired.categories)) or "no category"
    lines = [f"{printable(retired.component)} has read {read}"]
    if retired.removed:
        lines.append("Removed:" if apply else "Would be removed:")
    lines += [f"  {kind}: {count:,}" for kind, count in retired.removed.items()]
    if not apply:
        lines.append("Nothing is changed; remove it with --apply.")
    return lines


def _as_json(retired: Retired, apply: bool) -> dict[str, object]:
    return {
        "component": retired.component,
        "categories": list(retired.categories),
        "applied": apply,
        "removed": retired.removed,
    }
