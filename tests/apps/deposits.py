"""A read model of a component's commands, which are what `reservation prune` removes."""

from pathlib import Path
from typing import Any

from psycopg import Connection

from bank.messages import Deposit
from reservation import ReadContext, ReadModel

ROOT = Path(__file__).parents[2]
APP = "tests.apps.deposits:model"

model = ReadModel("deposits", version=1)


@model.tables
def tables(connection: Connection[Any]) -> None:
    connection.execute("CREATE TABLE asked (account text PRIMARY KEY, total numeric NOT NULL)")


@model.handle(Deposit, category="account:command")
def deposit(command: Deposit, context: ReadContext) -> None:
    context.connection.execute(
        "INSERT INTO asked VALUES (%s, %s)"
        " ON CONFLICT (account) DO UPDATE SET total = asked.total + excluded.total",
        [command.account_id, command.amount],
    )
