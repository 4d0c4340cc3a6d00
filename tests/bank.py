"""Running the example's consumers within a test, batch by batch."""

from typing import Any

import structlog
from psycopg import Connection

from bank import account
from bank.invariants import check_invariants
from consumers.batch import Batch, BatchResult
from consumers.position import Position
from consumers.session import Session
from reservation import Component, MessageStore

RESERVED = "accountTransaction"
READS = ["account:command", RESERVED]


def batch(connection: Connection[Any], category: str, component: Component = account) -> Batch:
    """Claim a category for a component and return what takes it forward."""
    return Batch(connection, component, Position.claim(connection, component.name, category))


def session(database_url: str) -> Session:
    """Return what a consumer works on, to be entered."""
    return Session(database_url, "reservation test", structlog.get_logger())


def drain(connection: Connection[Any], component: Component = account) -> list[BatchResult]:
    """Take every category of a component to its end, and return what became of each batch."""
    results = []
    for category in (component.command_category, *component.reservation_categories):
        one = batch(connection, category, component)
        while (result := one.run(100)).read:
            results.append(result)
    return results


def event_types(store: MessageStore, account_id: str = "123") -> list[str]:
    """Return the types of an account's events, in order."""
    return [message.type for message in store.read_stream(f"account-{account_id}")]


def broken(connection: Connection[Any], acknowledged: Any = ()) -> dict[str, list[str]]:
    """Return the invariants that do not hold, and what breaks them."""
    found = check_invariants(connection, acknowledged)
    return {one.name: one.broken_by for one in found if not one.holds}
