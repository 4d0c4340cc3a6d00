"""``reservation store repair``: repair the sequence of global positions."""

import json

import click

from cli.common.errors import debug_option
from cli.common.options import database_option, json_option
from reservation.postgres.connection import connect
from reservation.store.schema.preconditions import repair_sequence


@click.command("repair")
@database_option
@json_option
@debug_option
def repair(database_url: str, as_json: bool) -> None:
    """Set the sequence of global positions after the last message of the log.

    Logical replication, and a restore of the data alone, copy the messages but leave the sequence
    behind. New messages then get positions that are in use, and every write fails. If the sequence
    is not behind, nothing is changed.

    Needs the owner of the store. Writers wait meanwhile, so the command is safe while they run.

    \b
    Examples:
      reservation store repair --database-url postgresql://localhost/bank
      reservation store repair --json
    """
    with connect(database_url, autocommit=True) as connection:
        found = repair_sequence(connection)
    name = ".".join(found.name)
    if as_json:
        changed = {"sequence": name, "next": found.next, "last": found.last}
        click.echo(json.dumps({**changed, "changed": found.is_behind}))
    elif found.is_behind:
        click.echo(
            f"{name}: was behind the log, at {found.next} with {found.last} in the log; the next "
            f"global position is {found.last + 1}"
        )
    else:
        click.echo(f"{name}: is not behind the log, left as it is")
