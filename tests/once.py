"""A component whose handlers leave a row for each effect, and its messages."""

from collections import Counter
from dataclasses import dataclass

from reservation import Component
from tests.bank import batch

SENT = "till:command-123"
COMMANDS = "till:command"


@dataclass(frozen=True)
class Pay:
    pay_id: str
    till_id: str
    revision: int = 0
    source: str = "s"


@dataclass(frozen=True)
class Refund:
    pay_id: str
    till_id: str
    revision: int = 0
    source: str = "s"


def pay(key="p1", revision=0, source="s", till="123"):
    return Pay(key, till, revision, source)


def refund(key="p1", till="123"):
    return Refund(key, till)


def till(once, *, name="till", fails=frozenset()):
    """Return a component whose handlers use a strategy; those of some keys fail."""
    component = Component(name, id="till_id")

    def take_effect(command, entity, context):
        context.connection.execute(
            "INSERT INTO effects VALUES (%s, %s, %s)",
            [name, type(command).__name__, command.pay_id],
        )
        if command.pay_id in fails:
            raise ValueError

    for command in (Pay, Refund):
        component.handle(command, once=once)(take_effect)
    return component


def prepare(connection):
    """Make the table that the handlers write to."""
    connection.execute("CREATE TABLE IF NOT EXISTS effects (component text, type text, key text)")


def effects(connection, component="till"):
    """Return how often each key took effect, and refunds with a minus."""
    rows = connection.execute(
        "SELECT CASE type WHEN 'Refund' THEN '-' ELSE '' END || key FROM effects "
        "WHERE component = %s",
        [component],
    )
    return Counter(row[0] for row in rows)


def run(connection, component, limit=100):
    """Take the commands to their end, and return how they were counted."""
    counts = Counter()
    claimed = batch(connection, component.command_category, component)
    while (result := claimed.run(limit)).read:
        counts += result.counts
    return counts


def redeliver(connection, to=0):
    """Let all consumers read from a position again."""
    connection.execute("UPDATE reservation.positions SET position = %s", [to])
