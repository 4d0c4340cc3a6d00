"""What must hold of a bank's store once its consumers have caught up, checked on the data.

The checks are queries over the stored messages and know nothing of the framework's code. Each query
returns the messages that break the rule, so an empty result is the proof.
"""

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from psycopg import Connection

from bank import component, messages
from bank.entity import Account
from reservation import MessageStore

# By their names, as bytes: psycopg takes a `str` for a query only where it is a literal.
_QUERIES = {
    name: query.encode()
    for name, query in re.findall(
        r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)",
        (files("bank") / "invariants.sql").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
}

# What the account's events do to it. Any: each function takes the events of its own type.
_PROJECTORS: dict[str, tuple[type, Any]] = {
    "Opened": (messages.Opened, component.opened),
    "Deposited": (messages.Deposited, component.deposited),
    "Withdrawn": (messages.Withdrawn, component.withdrawn),
    "WithdrawalRejected": (messages.WithdrawalRejected, component.withdrawal_rejected),
    "Closed": (messages.Closed, component.closed),
}

STATEMENTS = {
    "I1": "every acknowledged command is in the log exactly once",
    "I2": "every idempotence key has exactly one effect",
    "I3": "no effect without a command",
    "I4": "positions in a stream are gapless from 0",
    "I5": "the consumers saw every message, in order",
    "I6": "balance = deposits − withdrawals, and no withdrawal without funds",
    "I7": "the backlog is drained",
    "I8": "every message that was not handled is accounted for",
}

_CHECKS = {
    "I1": "i1_acknowledged",
    "I2": "i2_one_effect",
    "I3": "i3_no_effect_without_command",
    "I4": "i4_gapless",
    "I5": "i5_in_order",
    "I6": "i6_money",
    "I7": "i7_drained",
    "I8": "i8_accounted_for",
}


@dataclass(frozen=True, slots=True)
class Invariant:
    """One rule and what breaks it.

    Attributes:
        name: I1 to I8.
        statement: the rule, in words.
        broken_by: what breaks it; nothing if it holds.
    """

    name: str
    statement: str
    broken_by: list[str]

    @property
    def holds(self) -> bool:
        """Whether nothing breaks the rule."""
        return not self.broken_by


def check_invariants(
    connection: Connection[Any], acknowledged: Iterable[uuid.UUID]
) -> list[Invariant]:
    """Check I1 to I8.

    Args:
        connection: to the store, in autocommit.
        acknowledged: the ids of the commands whose writing was confirmed to the sender.
    """
    parameters = {"acknowledged": list(set(acknowledged))}
    found = []
    for name, query in _CHECKS.items():
        broken_by = [row[0] for row in connection.execute(_QUERIES[query], parameters).fetchall()]
        if name == "I6":
            broken_by += _wrong_balances(connection)
        found.append(Invariant(name, STATEMENTS[name], broken_by))
    return found


def progress(connection: Connection[Any]) -> dict[str, tuple[int, int]]:
    """Return for each category how many messages its consumer has before it, of how many."""
    rows = connection.execute(_QUERIES["progress"]).fetchall()
    return {category: (unread, stored) for category, unread, stored in rows}


def _wrong_balances(connection: Connection[Any]) -> list[str]:
    """Name the accounts whose projected balance is not the sum of their events."""
    sums = dict(connection.execute(_QUERIES["accounts"]).fetchall())
    accounts = {name: Account() for name in sums}
    for message in MessageStore(connection).read_streams(dict.fromkeys(sums, 0)):
        if message.type in _PROJECTORS:
            event, project = _PROJECTORS[message.type]
            project(accounts[message.stream_name], message.decode(event))
    return [
        f"{name}: {entity.balance} projected, {sums[name]} in events"
        for name, entity in accounts.items()
        if entity.balance != sums[name] or entity.balance < 0
    ]
