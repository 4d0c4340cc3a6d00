"""What must hold of a bank's store once its consumers have caught up, checked on the data.

The checks know nothing of the framework's code: they are queries over the stored messages. Each
gives the messages that break the rule, so an empty answer is the proof.
"""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from bank.component import account
from reservation import MessageStore
from reservation.entity.cache import EntityCache
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("bank", "invariants.sql")

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
    cache = EntityCache(account.entity or object, account.projection, capacity=len(sums) or 1)
    accounts: dict[str, Any] = {  # Any: the entities are the component's own
        name: loaded.entity for name, loaded in cache.load(MessageStore(connection), sums).items()
    }
    return [
        f"{name}: {one.balance} projected, {sums[name]} in events"
        for name, one in accounts.items()
        if one.balance != sums[name] or one.balance < 0
    ]
