"""A component whose handlers leave a row for each effect, and its messages."""

import contextlib
import json
from collections import Counter
from dataclasses import dataclass

import psycopg

from reservation import Component
from tests.apps.bank import address, drain
from tests.support.commands import invoke_cli

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


def till(once, *, name="till", fails=frozenset(), once_each=False):
    """Return a component whose handlers use a strategy; those of some keys fail, or fail once."""
    component = Component(name, id="till_id")

    def take_effect(command, entity, context):
        context.connection.execute(
            "INSERT INTO effects VALUES (%s, %s, %s)",
            [name, type(command).__name__, command.pay_id],
        )
        if command.pay_id in fails:
            if once_each:
                fails.discard(command.pay_id)
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
    return drain(connection, component, batch_size=limit).counts


def redeliver(connection, to=0):
    """Let all consumers read from a position again."""
    connection.execute("UPDATE reservation.moves SET position = %s", [to])


def prune(connection, *arguments, apply=True):
    """Prune, and return what was removed, by kind and owner, and why the rest was not."""
    apply_ = ["--apply"] if apply else []
    done = invoke_cli("prune", *arguments, *apply_, "--json", "--database-url", address(connection))
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    removed = {(one["kind"], one["of"]): one["count"] for one in summary["pruned"]}
    return removed, [one["why"] for one in summary["kept"]]


def letters(connection):
    """Return the dead letters in order: the key of each, its state, reason and error."""
    return connection.execute(
        "SELECT m.data->>'payId', l.state, l.reason, l.error FROM reservation.dead_letters l "
        "JOIN message_store.messages m USING (global_position) ORDER BY global_position"
    ).fetchall()


@contextlib.contextmanager
def counted_round_trips(monkeypatch):
    """Give a list that gets longer with each exchange of this process with the server."""
    counted = []
    wait = psycopg.Connection.wait

    def counting(self, *arguments, **options):
        counted.append(1)
        return wait(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Connection, "wait", counting)
        yield counted
