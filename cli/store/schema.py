"""``reservation store``: the message store's schemas in a database, and the rights on them."""

import json
import sys
from typing import get_args

import click

from cli.common.confirming import yes_option
from cli.common.errors import CommandError, CommandGroup, debug_option
from cli.common.options import database_option, json_option
from cli.store.notices import notices
from cli.store.repair import repair
from reservation.postgres.connection import connect
from reservation.store.schema.install import Detached, Installed, attach, attached, detach, install
from reservation.store.schema.roles import Grants, Kind, grant


@click.group(cls=CommandGroup)
@debug_option
def store() -> None:
    """Set up the message store, and the rights of its users.

    \b
    Example:
      reservation store install --database-url postgresql://localhost/bank
    """


store.add_command(notices)
store.add_command(repair)


@store.command("install")
@database_option
@json_option
@debug_option
def install_command(database_url: str, as_json: bool) -> None:
    """Put the message store into a database.

    Adds the schema message_store, which any Message DB client can use, and the schema reservation,
    which holds the consumers' positions. Existing objects are left as they are, and missing
    functions are created again. All of it happens in one transaction.

    In a new store, writers notify the consumers that wait for a message; `reservation store notices
    off` switches that off. An upgrade does not change the setting.

    \b
    Examples:
      reservation store install --database-url postgresql://localhost/bank
      PGSERVICE=bank reservation store install
    """
    with connect(database_url, autocommit=True) as connection:
        installed = install(connection)
    _print_installed(installed, as_json)


@store.command("attach")
@database_option
@json_option
@debug_option
def attach_command(database_url: str, as_json: bool) -> None:
    """Add the schema reservation to a database that Message DB set up.

    Needs Message DB 1.3.0. Nothing in its schema message_store is changed, so consumers poll until
    `reservation store notices on` adds a trigger to the table of messages. All of it happens in one
    transaction; `reservation store detach` undoes it.

    \b
    Example:
      reservation store attach --database-url postgresql://localhost/bank
    """
    with connect(database_url, autocommit=True) as connection:
        installed = attach(connection)
    _print_installed(installed, as_json)


@store.command("detach")
@database_option
@yes_option
@json_option
@debug_option
def detach_command(database_url: str, yes: bool, as_json: bool) -> None:
    """Remove the schema reservation, and with it the consumers' positions.

    The messages and the schema message_store stay as they are. After attaching again, consumers
    begin at the start of their categories. The command refuses while a consumer is running. All of
    it happens in one transaction.

    The command asks for confirmation; without a terminal, give --yes.

    \b
    Examples:
      reservation store detach --database-url postgresql://localhost/bank
      reservation store detach --yes --json
    """
    with connect(database_url, autocommit=True) as connection:
        if not yes:
            _confirm(attached(connection), connection.info.dbname)
        detached = detach(connection)
    if as_json:
        click.echo(json.dumps(_detached_as_json(detached)))
    else:
        click.echo("\n".join(_detached_sentences(detached)))


@store.command("grants")
@click.argument("kind", type=click.Choice(get_args(Kind)))
@click.argument("role")
@click.option(
    "--category",
    "categories",
    multiple=True,
    metavar="CATEGORY",
    help="A category that a sender may write to, such as account:command. Repeat it for several.",
)
@click.option(
    "--global-revisions",
    is_flag=True,
    help="Let a sender draw revisions from the counter of all entities, too.",
)
@click.option("--dry-run", is_flag=True, help="Print the SQL, and do not run it.")
@database_option
@json_option
@debug_option
def grants_command(
    kind: Kind,
    role: str,
    categories: tuple[str, ...],
    global_revisions: bool,
    dry_run: bool,
    database_url: str,
    as_json: bool,
) -> None:
    """Give ROLE the rights of a sender, a consumer, an operator or an auditor.

    \b
    sender    writes to the given categories, and reads nothing
    consumer  has what `reservation start` needs
    operator  decides about dead letters and findings: retries, discards, accepts
    auditor   reads everything: for `reservation reconcile`, and for clients that read

    Afterwards the role has exactly these rights in the schemas message_store and reservation; any
    other is revoked. A role that does not exist is created without LOGIN. The command prints the
    SQL and runs it in one transaction. Run it again after an upgrade.

    \b
    Examples:
      reservation store grants sender web --category account:command
      reservation store grants consumer bank --dry-run
      reservation store grants operator support
      reservation store grants auditor spark
    """
    if kind == "sender" and not categories:
        raise click.UsageError(
            "A sender needs --category, once for each category that it may write to"
        )
    if kind != "sender" and categories:
        raise click.UsageError(f"--category is for a sender; leave it out for the {kind} {role}")
    if kind != "sender" and global_revisions:
        raise click.UsageError(
            f"--global-revisions is for a sender; leave it out for the {kind} {role}"
        )
    with connect(database_url, autocommit=True) as connection:
        granted = grant(
            connection, kind, role, categories, global_revisions=global_revisions, dry_run=dry_run
        )
    if as_json:
        click.echo(json.dumps(_granted_as_json(granted, dry_run)))
    else:
        click.echo(f"BEGIN;\n{granted.statements}\nCOMMIT;")
        click.echo("\n".join(_granted_sentences(granted, dry_run)), err=True)


def _print_installed(installed: Installed, as_json: bool) -> None:
    if as_json:
        click.echo(
            json.dumps(
                {
                    "messageStore": {
                        "installed": installed.message_store,
                        "version": installed.message_store_version,
                    },
                    "reservation": {
                        "fromVersion": installed.from_version,
                        "version": installed.to_version,
                        "restored": installed.restored,
                    },
                    "notices": "on" if installed.notices else "off",
                }
            )
        )
    else:
        click.echo("\n".join(_installed_sentences(installed)))


def _installed_sentences(installed: Installed) -> list[str]:
    did = "installed" if installed.message_store else "was there already, left as it is"
    lines = [f"message_store {installed.message_store_version}: {did}"]
    if installed.from_version is None:
        lines.append(f"reservation {installed.to_version}: installed")
    elif installed.restored:
        functions = (
            "1 function was" if installed.restored == 1 else f"{installed.restored} functions were"
        )
        lines.append(f"reservation {installed.to_version}: {functions} missing, made again")
    elif installed.from_version == installed.to_version:
        lines.append(f"reservation {installed.to_version}: was there already, left as it is")
    else:
        lines.append(f"reservation {installed.to_version}: upgraded from {installed.from_version}")
    state, other = ("on", "off") if installed.notices else ("off", "on")
    lines.append(f"notices: {state}; `reservation store notices {other}` switches them {other}")
    return lines


def _confirm(lost: Detached, database: str) -> None:
    if lost.version is None:
        return
    if not sys.stdin.isatty():
        raise CommandError(
            f"Detaching removes the schema reservation from the database {database!r}, with "
            f"{_positions(lost)}, and there is no terminal to ask on; give --yes to confirm"
        )
    lines = [f"Detaching removes the schema reservation from the database {database!r}."]
    if lost.positions:
        lines.append("These consumers lose their positions, and would begin from the start:")
        lines += [
            f"  {consumer} in {category}, at {position:,}"
            for consumer, category, position in lost.positions
        ]
    else:
        lines.append("No consumer has a position in it.")
    if lost.dependents:
        lines.append("These objects depend on it and are removed too:")
        lines += [f"  {dependent}" for dependent in lost.dependents]
    if lost.scheduled:
        lines.append(f"These will never be written: {_scheduled(lost)}.")
    lines.append("The messages stay.")
    click.echo("\n".join(lines), err=True)
    click.confirm("Detach?", abort=True, err=True)


def _scheduled(detached: Detached) -> str:
    return f"{detached.scheduled:,} scheduled message{'s' if detached.scheduled > 1 else ''}"


def _positions(detached: Detached) -> str:
    count = len(detached.positions)
    consumers = {consumer for consumer, _, _ in detached.positions}
    if count == 0:
        return "no consumer's position"
    return (
        f"{count} position{'s' if count > 1 else ''} of the consumer"
        f"{'s' if len(consumers) > 1 else ''} {', '.join(sorted(consumers))}"
    )


def _detached_sentences(detached: Detached) -> list[str]:
    if detached.version is None:
        return ["reservation: was not there, nothing is removed"]
    lines = [f"reservation {detached.version}: removed, with {_positions(detached)}"]
    if detached.scheduled:
        lines[0] += f" and {_scheduled(detached)}"
    lines += [
        f"{dependent}: removed, it depended on reservation" for dependent in detached.dependents
    ]
    return [*lines, "message_store: left as it is"]


def _detached_as_json(detached: Detached) -> dict[str, object]:
    return {
        "reservation": {"removed": detached.version is not None, "version": detached.version},
        "positions": [
            {"consumer": consumer, "category": category, "position": position}
            for consumer, category, position in detached.positions
        ],
        "dependents": list(detached.dependents),
    }


def _granted_sentences(granted: Grants, dry_run: bool) -> list[str]:
    match granted.kind:
        case "sender":
            right = f"write to {', '.join(granted.categories)}"
            if granted.global_revisions:
                right += ", draw revisions for all entities"
        case "consumer":
            right = "run consumers: read and write messages, and keep positions"
        case "operator":
            right = "read messages, retry and discard dead letters, and accept findings"
        case "auditor":
            right = "read messages and positions"
    if dry_run:
        made = " would be created, without LOGIN, and" if granted.created else ""
        return [f"Nothing is changed. The role {granted.role}{made} could {right}, and no more."]
    lines = [f"The role {granted.role} may {right}, and no more."]
    if granted.created:
        lines.append(
            "It did not exist and was created, without LOGIN: let it log in with ALTER ROLE, or "
            "grant it to a role that does."
        )
    return lines


def _granted_as_json(granted: Grants, dry_run: bool) -> dict[str, object]:
    return {
        "role": granted.role,
        "kind": granted.kind,
        "categories": list(granted.categories),
        "globalRevisions": granted.global_revisions,
        "created": granted.created,
        "applied": not dry_run,
        "sql": granted.statements,
    }
