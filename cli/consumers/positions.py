"""``reservation positions``: show and change the positions of consumers."""

import json
from typing import Any

import click
from psycopg import Connection
from rich.table import Table
from rich.text import Text

from cli.common.confirming import yes_option
from cli.common.errors import CommandError, CommandGroup, debug_option
from cli.common.options import app_options, database_option, json_option, optional_app_options
from cli.common.tables import console
from cli.consumers.changes import Removal, carry_out, check_category, chosen, counted
from consumers.group.administration import find_idle, plan_move
from consumers.group.inspection.stored_positions import StoredPosition, read_positions, reads_of
from consumers.group.memory import remembered
from consumers.handling.rereading import check_again, forget_records, look_again
from reservation.app_path import app_in_errors, load_component, refuse_read_model
from reservation.maintenance.eventide_positions import position_stream, stored_position
from reservation.maintenance.reservation_names import check_names
from reservation.messages.message import printable
from reservation.postgres.connection import connect
from reservation.store.schema.install import check_installed

# Its rows are those of the events up to its position.
_MADE_ANEW = (
    "to make its tables anew, give it another version, or run `reservation models drop {name} "
    "{version}` and start it again"
)


@click.group(cls=CommandGroup)
@debug_option
def positions() -> None:
    """Show the positions of consumers, and change them by hand.

    \b
    Example:
      reservation positions list
    """


@positions.command("list")
@optional_app_options
@database_option
@json_option
@debug_option
def list_command(app: str | None, app_dir: str, database_url: str, as_json: bool) -> None:
    """List the stored positions, of every consumer or of those of the component APP.

    \b
    Examples:
      reservation positions list
      reservation positions list bank:account --json
    """
    reads = None if app is None else reads_of(load_component(app, app_dir))
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        stored = read_positions(connection, reads)
    if as_json:
        click.echo(json.dumps({"positions": [_as_json(position) for position in stored]}))
    elif not stored:
        click.echo("No consumer was ever run on this store.")
    else:
        console().print(_table(stored))


@positions.command("set")
@app_options
@click.argument("category")
@click.argument("position", type=click.IntRange(0, 2**63 - 1))
@click.option("--partition", type=click.IntRange(0), help="Change only this partition.")
@database_option
@yes_option
@json_option
@debug_option
def set_command(
    app: str,
    app_dir: str,
    category: str,
    position: int,
    partition: int | None,
    database_url: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Set the position of the component APP in CATEGORY to POSITION.

    The position is the global position of the last message that counts as handled. A lower position
    redelivers the messages after it. A higher one passes over the messages up to it; they are never
    handled. The command prints the number of both and asks for confirmation; without a terminal,
    give --yes. It refuses while the consumer runs anywhere.

    \b
    Examples:
      reservation positions set bank:account account:command 4200
      reservation positions set bank:account account:command 4200 --partition 3 --yes
    """
    component = load_component(app, app_dir)
    refuse_read_model(component, _MADE_ANEW)
    check_category(component, category)
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        group = find_idle(connection, component.name, category)
        size = len(group.positions)
        if partition is None:
            after = [position] * size
        elif partition < size:
            after = [*group.positions[:partition], position, *group.positions[partition + 1 :]]
        else:
            raise click.UsageError(
                f"There is no partition {partition}: those of {component.name} in {category} are 0 "
                f"to {size - 1}"
            )
        with app_in_errors(app):
            change = plan_move(connection, group, after)
        carry_out(
            connection,
            [change],
            None if yes else "Set it",
            as_json=as_json,
            rereading={category: look_again(connection, component, change)},
        )


@positions.command("reset")
@app_options
@click.argument("category", required=False)
@click.option(
    "--forget/--keep",
    default=None,
    help="Remove or keep the processed messages, revisions, states and lost dead letters that the "
    "consumers of APP remember. Required if the store was cleared, restored or replaced.",
)
@click.option(
    "--again",
    is_flag=True,
    help="Handle messages again that are recorded as handled; otherwise they are duplicates.",
)
@database_option
@yes_option
@json_option
@debug_option
def reset_command(
    app: str,
    app_dir: str,
    category: str | None,
    forget: bool | None,
    again: bool,
    database_url: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Set the positions of the component APP to 0, in CATEGORY or in all that it reads.

    Every message is then read again. The command prints how many there are, and how many of them
    will be duplicates, and asks for confirmation; without a terminal, give --yes. It refuses while
    a consumer of one of the categories runs anywhere.

    A subscription and several strategies record which messages they have handled. --again removes
    these records, so that the handlers are called again. It is refused for messages that the log
    itself shows as handled, such as reserved commands. Events that are in the log already are not
    written again. It needs the owner of the store.

    Positions of another log mean that the store was cleared, restored or replaced. What consumers
    remember outside the log could then make new messages look like duplicates of lost ones.
    --forget removes these records; they are rebuilt from the log. --keep leaves them. See
    docs/how-to/back-up-and-restore.md.

    \b
    Examples:
      reservation positions reset bank:account
      reservation positions reset bank:account accountTransaction --yes
      reservation positions reset bank:account --forget
      reservation positions reset shop:orders payment --again
    """
    component = load_component(app, app_dir)
    refuse_read_model(component, _MADE_ANEW)
    wanted = chosen(component, category)
    if again:
        if forget is not None:
            raise click.UsageError(
                "--again cannot be given with --forget or --keep, which are for positions of "
                "another log; leave one out"
            )
        for one in wanted:
            check_again(component, one)
    if forget and category is not None:
        raise click.UsageError(
            f"--forget applies to all categories of {component.name}; leave out {category}"
        )
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        groups = [find_idle(connection, component.name, category) for category in wanted]
        asks = forget is None and any(group.foreign for group in groups)
        known = remembered(connection, component) if forget or asks else {}
        if asks and known:
            raise CommandError(
                f"The positions of {component.name} are not of this store, and its consumers "
                f"remember {counted(known)}, perhaps of messages that the store does not have; "
                f"give --forget to remove them, or --keep to keep them; see "
                f"docs/how-to/back-up-and-restore.md"
            )
        changes = [plan_move(connection, group, [0] * len(group.positions)) for group in groups]
        rereading = (
            {}
            if forget
            else {
                change.group.category: look_again(connection, component, change)
                for change in changes
            }
        )

        def handle_anew(locked: Connection[Any]) -> None:
            for one in wanted:
                forget_records(locked, component, one)

        carry_out(
            connection,
            changes,
            None if yes else "Set them to 0",
            as_json=as_json,
            forgetting=Removal(component, known) if forget else None,
            rereading=rereading,
            also=handle_anew if again else None,
            again=again,
        )


@positions.command("import")
@app_options
@click.option("--category", help="Take over only the position of this category.")
@click.option(
    "--identifier",
    "identifiers",
    multiple=True,
    help="The identifier of Eventide's consumer, if it has one. Repeat it for each member of a "
    "group.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing.")
@database_option
@yes_option
@json_option
@debug_option
def import_command(
    app: str,
    app_dir: str,
    category: str | None,
    identifiers: tuple[str, ...],
    dry_run: bool,
    database_url: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Take over the positions that consumers of Eventide stored for what the component APP reads.

    Eventide stores them in streams such as account:command+position, or with the consumer's
    identifier account:command+position-abc. Stop those consumers first. The consumers of APP then
    start after the stored position. Eventide stores it after every 100 messages, so up to 99
    handled messages are redelivered. Of a group the lowest position is taken.

    The command refuses if a consumer of APP has a position above 0, unless --yes is given. It also
    refuses if the store has reservations under other names than APP declares, because redelivered
    messages would take effect again. Declare the former key with Key(…, former_key=…).

    \b
    Examples:
      reservation positions import bank:account --dry-run
      reservation positions import bank:account --category account:command --identifier bank
    """
    component = load_component(app, app_dir)
    refuse_read_model(component, _MADE_ANEW)
    read = chosen(component, category)
    changes = []
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        check_names(connection, component, entirely=True)
        for category in read:
            stored = stored_position(connection, category, identifiers)
            if stored is None:
                continue
            group = find_idle(connection, component.name, category)
            after = [stored.position] * len(group.positions)
            if max(group.positions) > 0 and after != list(group.positions) and not (yes or dry_run):
                raise CommandError(
                    f"The consumer {component.name} of {category} is at {max(group.positions):,} "
                    f"already, and {stored.stream_name} holds {stored.position:,}; give --yes to "
                    f"replace it"
                )
            with app_in_errors(app):
                changes.append(plan_move(connection, group, after))
            click.echo(f"{printable(stored.stream_name)}: {stored.position:,}", err=True)
        if not changes:
            looked = [
                position_stream(category, who)
                for category in read
                for who in identifiers or (None,)
            ]
            raise CommandError(
                f"There is no position in {', '.join(looked)}; give the consumer's identifier with "
                f"--identifier, if it has one"
            )
        carry_out(connection, changes, None, as_json=as_json, dry_run=dry_run)


def _table(stored: list[StoredPosition]) -> Table:
    table = Table()
    for heading in ("consumer", "category"):
        table.add_column(heading, overflow="fold")
    for heading in ("partition", "position", "epoch"):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("holder", overflow="fold")
    table.add_column("last commit", overflow="fold")
    for position in stored:
        table.add_row(
            Text(printable(position.consumer)),
            Text(printable(position.category)),
            f"{position.partition} of {position.partitions}",
            f"{position.position:,}{', not of this store' if position.foreign else ''}",
            str(position.epoch),
            Text(_holder(position)),
            "never" if position.updated_at is None else f"{position.updated_at:%Y-%m-%d %H:%M:%S}",
        )
    return table


def _holder(one: StoredPosition) -> str:
    if one.holder is None:
        return "nobody"
    return f"{printable(one.holder.process or 'its process')}{', gone' if one.holder.gone else ''}"


def _as_json(one: StoredPosition) -> dict[str, object]:
    return {
        "consumer": one.consumer,
        "category": one.category,
        "partition": one.partition,
        "partitions": one.partitions,
        "position": one.position,
        "messageId": one.message_id and str(one.message_id),
        "foreign": one.foreign,
        "formerPositions": one.former_positions,
        "epoch": one.epoch,
        "holder": one.holder and {"process": one.holder.process, "gone": one.holder.gone},
        "updatedAt": one.updated_at and one.updated_at.isoformat(),
    }
