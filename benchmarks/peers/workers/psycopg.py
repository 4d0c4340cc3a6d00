"""One command a transaction, written plainly with psycopg: the loop to be faster than.

It is what a consumer by hand would be. Commands are read in batches of the reader's default, and an
account is kept in memory, as Eventide does. Each command's mark, event and new position commit in
one transaction, so its effect happens once.
"""

import json
import os
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg

from benchmarks.peers.workers.timing import report

Command = tuple[int, str, str]  # global position, type, data


@dataclass
class Account:
    """An account, as its events make it."""

    version: int = -1
    balance: Decimal = Decimal(0)


def work(batch_size: int) -> None:
    """Handle all commands of ``account:command``."""
    accounts: dict[str, Account] = {}
    with psycopg.connect(dbname=os.environ["PGDATABASE"], autocommit=True) as connection:
        connection.execute("CREATE TABLE processed (key text PRIMARY KEY)")
        connection.execute("CREATE TABLE position (position bigint)")
        connection.execute("INSERT INTO position VALUES (0)")
        position = 0
        start = time.time()
        while commands := _read(connection, position, batch_size):
            for command in commands:
                _handle(connection, accounts, command)
                position = command[0]
    report(start)


def _read(
    connection: psycopg.Connection[Any], position: int, batch_size: int
) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT global_position, type, data "
        "FROM message_store.get_category_messages('account:command', %s, %s)",
        [position + 1, batch_size],
    ).fetchall()


def _handle(
    connection: psycopg.Connection[Any], accounts: dict[str, Account], command: Command
) -> None:
    position, type_name, text = command
    data = json.loads(text, parse_float=Decimal)
    key = data.get("depositId") or data.get("withdrawalId") or f"{type_name} {data['accountId']}"
    with connection.transaction():
        marked = connection.execute(
            "INSERT INTO processed VALUES (%s) ON CONFLICT DO NOTHING", [key]
        )
        if marked.rowcount:
            _write(connection, accounts, type_name, {**data, "sequence": position})
        connection.execute("UPDATE position SET position = %s", [position])


def _write(
    connection: psycopg.Connection[Any],
    accounts: dict[str, Account],
    type_name: str,
    data: dict[str, Any],
) -> None:
    account = accounts.setdefault(data["accountId"], Account())
    amount = Decimal(data.get("amount", 0))
    event, change = {
        "Open": ("Opened", 0),
        "Deposit": ("Deposited", amount),
        "Withdraw": ("Withdrawn", -amount),
        "Close": ("Closed", 0),
    }[type_name]
    if account.balance + change < 0:
        event, change = "WithdrawalRejected", 0
    data["processedTime"] = datetime.now(UTC).isoformat()
    account.version = connection.execute(
        "SELECT message_store.write_message(%s, %s, %s, %s, NULL, %s)",
        [
            str(uuid.uuid4()),
            f"account-{data['accountId']}",
            event,
            json.dumps(data, default=float),
            account.version,
        ],
    ).fetchall()[0][0]
    account.balance += change
