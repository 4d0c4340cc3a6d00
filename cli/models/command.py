"""``reservation models``: list, switch, drop and verify the versions of read models."""

import json

import click

from cli.common.confirming import confirm, yes_option
from cli.common.errors import CommandGroup, debug_option
from cli.common.options import database_option, json_option
from cli.common.tables import console
from cli.models.listing import as_json as listed
from cli.models.listing import table
from cli.models.verify import verify_command
from consumers.read_models.changing import remove, switch
from consumers.read_models.progress import read_versions
from reservation.postgres.connection import connect
from reservation.store.schema.install import check_installed


@click.group(cls=CommandGroup)
@debug_option
def models() -> None:
    """Show the versions of read models, and switch the views that readers use.

    \b
    Example:
      reservation models list
    """


@models.command("list")
@click.argument("name", required=False)
@database_option
@json_option
@debug_option
def list_command(name: str | None, database_url: str, as_json: bool) -> None:
    """List the versions of the read model NAME, or of all.

    Prints of each version whether the views show it, how far it is, how many messages it has yet to
    handle, how many it handles in a second, the time that it needs at this rate, and its open dead
    letters. Progress is the share of global positions that it has passed. If one is behind, the
    command looks for a second. An auditor's rights are enough.

    \b
    Examples:
      reservation models list
      reservation models list occupancy --json
    """
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        found = read_versions(connection, name)
    if as_json:
        click.echo(json.dumps(listed(found)))
    elif not found:
        click.echo("No read model was ever run on this store.")
    else:
        screen = console()
        screen.print(table(found, with_bars=screen.is_terminal))


@models.command("switch")
@click.argument("name")
@click.argument("version", type=click.IntRange(1))
@database_option
@json_option
@debug_option
def switch_command(name: str, version: int, database_url: str, as_json: bool) -> None:
    """Let the views of the read model NAME show VERSION, in one transaction.

    Rights, owners and comments of the views stay. A view whose columns have changed is made anew,
    and one of a table that VERSION lacks is dropped; this is refused while other objects depend on
    it.

    The command refuses while VERSION has open dead letters, or lags behind the version that is
    shown, or by more than 1,000 messages. For the last of them it waits up to 10 seconds. Switch
    back in the same way. Needs the owner of the views.

    \b
    Examples:
      reservation models switch occupancy 2
    """
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        switched = switch(connection, name, version)
    if as_json:
        click.echo(json.dumps({"model": name, "version": version, "switched": switched}))
    elif switched:
        click.echo(f"The views of {name} show version {version}.")
    else:
        click.echo(f"The views of {name} show version {version} already.")


@models.command("drop")
@click.argument("name")
@click.argument("version", type=click.IntRange(1))
@database_option
@yes_option
@json_option
@debug_option
def drop_command(name: str, version: int, database_url: str, yes: bool, as_json: bool) -> None:
    """Remove VERSION of the read model NAME: its tables, positions and dead letters.

    Asks for confirmation; without a terminal, give --yes. Refuses while the views show VERSION, and
    while its consumers run anywhere. Needs the owner of the store and of the tables.

    \b
    Examples:
      reservation models drop occupancy 1
    """
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        if not yes:
            confirm([f"Removes the tables of version {version} of {name}"], "Remove them")
        made = remove(connection, name, version)
    if as_json:
        click.echo(json.dumps({"model": name, "version": version, "dropped": made.schema}))
    else:
        click.echo(f"Version {version} of {name} is removed.")


models.add_command(verify_command)
