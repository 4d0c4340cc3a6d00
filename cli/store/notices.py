"""``reservation store notices``: whether writers notify waiting consumers of new messages."""

import json

import click

from cli.common.errors import debug_option
from cli.common.options import database_option, json_option
from reservation.postgres.connection import connect
from reservation.store.notifications import set_notices
from reservation.store.schema.install import check_installed
from reservation.store.schema.notice_trigger import notices_given


@click.command("notices")
@click.argument("switch", type=click.Choice(["on", "off"]), required=False)
@database_option
@json_option
@debug_option
def notices(switch: str | None, database_url: str, as_json: bool) -> None:
    """Switch the notification of consumers on or off, or show the setting.

    With notices on, a commit wakes up the consumers that wait for a message of that category; they
    poll only once a second. With notices off, they poll every 0.1 seconds. `reservation store
    install` switches them on in a new store; `reservation store attach` leaves them off.
    Without ON or OFF, the command prints the setting.

    Switching needs the owner of the table of messages, waits for its writers, and takes place in
    one transaction. An upgrade leaves the setting as it is.

    \b
    Examples:
      reservation store notices on
      reservation store notices --json
    """
    with connect(database_url, autocommit=True) as connection:
        if switch is None:
            check_installed(connection)
            given, changed = notices_given(connection), False
        else:
            given = switch == "on"
            changed = set_notices(connection, given)
    state = "on" if given else "off"
    if as_json:
        click.echo(json.dumps({"notices": state, "changed": changed}))
    elif switch is None:
        click.echo(f"notices: {state}")
    else:
        click.echo(f"notices: {'switched' if changed else 'were'} {state}")
