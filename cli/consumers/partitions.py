"""``reservation partitions``: how many processes may share a category."""

import click

from cli.common.errors import debug_option
from cli.common.options import app_options, database_option, json_option
from cli.consumers.changes import carry_out, chosen
from consumers.group.administration import find_idle, plan_partitions
from reservation.app_path import app_in_errors, load_component
from reservation.maintenance.entity_order import check_order, check_waiting
from reservation.postgres.connection import connect
from reservation.store.schema.install import check_installed


@click.command()
@app_options
@click.argument("number", metavar="N", type=click.IntRange(1, 1024))
@click.option("--category", help="Change only this category.")
@database_option
@json_option
@debug_option
def partitions(
    app: str,
    app_dir: str,
    number: int,
    category: str | None,
    database_url: str,
    as_json: bool,
) -> None:
    """Change the number of partitions of what the component APP reads to N.

    At most N processes can then share a category. No message is passed over, and no handled message
    is read again. The command refuses while a consumer of one of the categories runs anywhere,
    while a partition has not yet reached the highest position of the last change, and if the
    commands of an entity would not stay in order.

    \b
    Examples:
      reservation partitions bank:account 32
      reservation partitions bank:account 4 --category accountTransaction
    """
    component = load_component(app, app_dir)
    wanted = chosen(component, category)
    for category in wanted:
        check_order(component, category, number)
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        groups = [find_idle(connection, component.name, category) for category in wanted]
        with app_in_errors(app):
            changes = [plan_partitions(group, number) for group in groups]
        for group in groups:
            after = min(group.positions)
            check_waiting(connection, component, group.category, number, after)
        carry_out(connection, changes, None, as_json=as_json)
