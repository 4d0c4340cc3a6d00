"""``reservation store``: the message store's schemas in a database."""

import json

import click

from cli.errors import Group, debug_option
from cli.options import database_option
from reservation.store.connection import connect
from reservation.store.install import Installed, install


@click.group(cls=Group)
@debug_option
def store() -> None:
    """Set up the message store."""


@store.command("install")
@database_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def install_command(database_url: str, as_json: bool) -> None:
    """Put the message store into a database.

    Adds the schemas message_store, which any Message DB client can use, and reservation, where the
    consumers keep their positions. What is there already is left as it is. All of it happens in one
    transaction.

    \b
    Examples:
      reservation store install --database-url postgresql://localhost/bank
      PGSERVICE=bank reservation store install
    """
    with connect(database_url, autocommit=True) as connection:
        installed = install(connection)
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
                    },
                }
            )
        )
    else:
        click.echo("\n".join(_sentences(installed)))


def _sentences(installed: Installed) -> list[str]:
    did = "installed" if installed.message_store else "was there already, left as it is"
    lines = [f"message_store {installed.message_store_version}: {did}"]
    if installed.from_version is None:
        lines.append(f"reservation {installed.to_version}: installed")
    elif installed.from_version == installed.to_version:
        lines.append(f"reservation {installed.to_version}: was there already, left as it is")
    else:
        lines.append(f"reservation {installed.to_version}: upgraded from {installed.from_version}")
    return lines
