"""``reservation positions``: see where consumers are, and move them by hand."""

import json

import click
from rich.table import Table
from rich.text import Text

from cli.changes import Forgetting, carry_out, check_category, chosen, counted, yes_option
from cli.errors import Failure, Group, debug_option
from cli.options import app_options, database_option, json_option, optional_app_options
from cli.tables import console
from consumers.foreign import naming
from consumers.memory import remembered
from consumers.resting import find_resting, plan_move
from consumers.stored_positions import StoredPosition, read_positions
from reservation.app_path import load_component
from reservation.eventide import position_stream, stored_position
from reservation.idempotence.naming import check_names
from reservation.message import printable
from reservation.store.connection import connect
from reservation.store.install import check_installed


@click.group(cls=Group)
@debug_option
def positions() -> None:
    """See where consumers are, and move them by hand."""


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
    component = None if app is None else load_component(app, app_dir)
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        stored = read_positions(connection, component)
    if as_json:
        click.echo(json.dumps({"positions": [_as_json(one) for one in stored]}))
    elif not stored:
        click.echo("No consumer was ever run on this store.")
    else:
        console().print(_table(stored))


@positions.command("set")
@app_options
@click.argument("category")
@click.argument("position", type=click.IntRange(0, 2**63 - 1))
@click.option("--partition", type=click.IntRange(0), help="Move this partition alone.")
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

    That is the global position of the last message that counts as dealt with. Further back, the
    messages after it are redelivered. Further on, those up to it are passed over and never handled.
    It says how many there are of either, and asks; where there is no terminal to ask on, --yes is
    needed. Refuses while the consumer runs anywhere.

    \b
    Examples:
      reservation positions set bank:account account:command 4200
      reservation positions set bank:account account:command 4200 --partition 3 --yes
    """
    component = load_component(app, app_dir)
    check_category(component, category)
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        group = find_resting(connection, component.name, category)
        size = len(group.positions)
        if partition is None:
            after = [position] * size
        elif partition < size:
            after = [*group.positions[:partition], position, *group.positions[partition + 1 :]]
        else:
            raise click.UsageError(
                f"The partitions of {component.name} in {category} are 0 to {size - 1}"
            )
        with naming(app):
            change = plan_move(connection, group, after)
        carry_out(connection, [change], None if yes else "Set it", as_json=as_json)


@positions.command("reset")
@app_options
@click.argument("category", required=False)
@click.option(
    "--forget/--keep",
    default=None,
    help="What becomes of the processed messages, revisions, states and lost dead letters that the "
    "consumers of APP remember. Needed where the store was cleared, restored or replaced.",
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
    database_url: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Set the positions of the component APP to 0, in CATEGORY or in all that it reads.

    Every message is then redelivered. It says how many there are, and asks; where there is no
    terminal to ask on, --yes is needed. Refuses while a consumer of one of them runs anywhere.

    Positions that were taken in another log mean that the store was cleared, restored or replaced.
    What the consumers remember beside the log would then make new messages duplicates of messages
    that are not there. --forget removes it: it is rebuilt from the log. --keep leaves it. See
    docs/how-to/back-up-and-restore.md.

    \b
    Examples:
      reservation positions reset bank:account
      reservation positions reset bank:account accountTransaction --yes
      reservation positions reset bank:account --forget
    """
    component = load_component(app, app_dir)
    wanted = chosen(component, category)
    if forget and category is not None:
        raise click.UsageError(
            f"--forget is for all that {component.name} reads; leave {category} out"
        )
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        groups = [find_resting(connection, component.name, one) for one in wanted]
        asks = forget is None and any(group.foreign for group in groups)
        known = remembered(connection, component) if forget or asks else {}
        if asks and known:
            raise Failure(
                f"The positions of {component.name} are not of this store, and its consumers "
                f"remember {counted(known)}, which may be of messages that are not in it; give "
                f"--forget to remove that, or --keep to leave it; see "
                f"docs/how-to/back-up-and-restore.md"
            )
        changes = [plan_move(connection, group, [0] * len(group.positions)) for group in groups]
        carry_out(
            connection,
            changes,
            None if yes else "Set them to 0",
            as_json=as_json,
            forgetting=Forgetting(component, known) if forget else None,
        )


@positions.command("import")
@app_options
@click.option("--category", help="Take over this category's alone.")
@click.option(
    "--identifier",
    "identifiers",
    multiple=True,
    help="That of Eventide's consumer, if it has one. Give it once for each member of a group.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and leave it at that.")
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

    They are in streams such as account:command+position, or with the consumer's identifier
    account:command+position-abc. Stop those consumers first. The message after the stored position
    is the next one here. Eventide stores it after every 100 messages, so up to 99 that it has
    handled are redelivered. Of a group the lowest position is taken.

    Where a consumer of ours is beyond 0 already, it refuses unless there is --yes. It also refuses
    where the store has reservations under other names than APP declares, because what is handled
    again would take effect again: name the former form with formerly= in reserve.

    \b
    Examples:
      reservation positions import bank:account --dry-run
      reservation positions import bank:account --category account:command --identifier bank
    """
    component = load_component(app, app_dir)
    read = chosen(component, category)
    changes = []
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        check_names(connection, component, entirely=True)
        for one in read:
            theirs = stored_position(connection, one, identifiers)
            if theirs is None:
                continue
            group = find_resting(connection, component.name, one)
            after = [theirs.position] * len(group.positions)
            if max(group.positions) > 0 and after != list(group.positions) and not (yes or dry_run):
                raise Failure(
                    f"The consumer {component.name} of {one} is at {max(group.positions):,} "
                    f"already, and {theirs.stream_name} holds {theirs.position:,}; give --yes if "
                    f"that is to take its place"
                )
            with naming(app):
                changes.append(plan_move(connection, group, after))
            click.echo(f"{printable(theirs.stream_name)}: {theirs.position:,}", err=True)
        if not changes:
            looked = [position_stream(one, who) for one in read for who in identifiers or (None,)]
            raise Failure(
                f"There is no position in {', '.join(looked)}; name the consumer's identifier with "
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
    for one in stored:
        table.add_row(
            Text(printable(one.consumer)),
            Text(printable(one.category)),
            f"{one.partition} of {one.partitions}",
            f"{one.position:,}{', not of this store' if one.foreign else ''}",
            str(one.epoch),
            Text(_holder(one)),
            "never" if one.updated_at is None else f"{one.updated_at:%Y-%m-%d %H:%M:%S}",
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
        "carried": one.carried,
        "epoch": one.epoch,
        "holder": one.holder and {"process": one.holder.process, "gone": one.holder.gone},
        "updatedAt": one.updated_at and one.updated_at.isoformat(),
    }
