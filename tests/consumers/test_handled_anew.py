"""What `positions reset` says of messages that are read again, and `--again`."""

import importlib
import re
from dataclasses import dataclass

import pytest

from tests.apps.bank import drain
from tests.support.commands import invoke_cli

PAID = "payment-1"

APP = """
from dataclasses import dataclass

from reservation import Component
from reservation.strategies import {strategy}

ONCE = {once}


@dataclass
class Paid:
    order_id: str
    number: int


@dataclass
class Noted:
    order_id: str


@dataclass
class Ask:
    order_id: str


ledger = Component("ledger", id="order_id")
calls = []


@ledger.handle(Paid, category="payment", id="order_id", once=ONCE)
def note(paid, entity, context):
    calls.append(paid.number)
    return context.follow(paid, Noted) if paid.number == 0 else None


@ledger.handle(Ask, once=Processed())
def ask(command, entity, context):
    calls.append(command.order_id)


ledger.handle(type("Keep", (Ask,), {{}}), key="order_id")(lambda *_: None)
"""


@dataclass
class Paid:
    """An event of another component."""

    order_id: str
    number: int


@pytest.fixture
def ledger(tmp_path, connection, store, database_url, monkeypatch):
    """Give a function that makes a component of a strategy, has it handle five payments."""

    class Ledger:
        def __init__(self, once="None"):
            strategy = once.partition("(")[0] if once != "None" else "Revisions"
            names = ", ".join(sorted({strategy, "Processed"}))
            text = APP.format(strategy=names, once=once)
            name = re.sub(r"\W", "_", f"ledger_{tmp_path.name}")
            (tmp_path / f"{name}.py").write_text(text)
            self.app = f"{name}:ledger"
            monkeypatch.syspath_prepend(str(tmp_path))
            self.module = importlib.import_module(name)
            self.component, self.calls = self.module.ledger, self.module.calls
            store.write([Paid("1", n) for n in range(5)], PAID)
            self.drain()

        def drain(self):
            del self.calls[:]
            counts = drain(connection, self.component).counts
            connection.execute("DELETE FROM reservation.members")
            return counts

        def reset(self, *arguments, status=0):
            done = invoke_cli(
                "positions",
                "reset",
                self.app,
                *arguments,
                "--yes",
                "--app-dir",
                str(tmp_path),
                env={"RESERVATION_DATABASE_URL": database_url},
            )
            assert done.returncode == status, done.stderr
            return done.stdout if status == 0 else done.stderr

    return Ledger


def test_a_subscription_says_what_is_recorded_and_handles_it_anew(ledger, store):
    """Passes make messages duplicates; --again removes them, and no event is written twice."""
    one = ledger()
    assert one.reset("payment").splitlines()[1:] == [
        "  5 messages will be read again",
        "  4 of them are recorded as handled and will be duplicates",
        "  1 of them took effect, as the log shows, and will be duplicates",
    ]
    assert one.drain() == {"duplicate": 5}
    assert one.calls == []
    said = one.reset("payment", "--again")
    assert "  4 of them are recorded as handled and will be handled again" in said.splitlines()
    assert one.drain() == {"handled": 4, "duplicate": 1}
    assert one.calls == [1, 2, 3, 4]
    assert [event.type for event in store.read_stream("ledger-1")] == ["Noted"]
    # They are recorded again.
    one.reset("payment")
    assert one.drain() == {"duplicate": 5}


@pytest.mark.parametrize("once", ["Processed()", "Processed(key='number')"])
def test_processed_messages_are_handled_anew(ledger, store, once):
    """The rows of the table go, those of messages of the category alone."""
    one = ledger(once)
    store.send(one.module.Ask("9"), one.component)
    one.drain()
    said = one.reset("payment", "--again")
    assert "  4 of them are recorded as handled and will be handled again" in said.splitlines()
    one.drain()
    assert one.calls[-4:] == [1, 2, 3, 4]
    assert [event.type for event in store.read_stream("ledger-1")] == ["Noted"]


def test_revisions_are_handled_anew(ledger, store):
    """The last revisions of the entities of the category go."""
    one = ledger("Revisions('number', source=None)")
    assert "  4 of them are recorded as handled and will be duplicates" in one.reset("payment")
    assert one.drain()["duplicate"] >= 4
    one.reset("payment", "--again")
    one.drain()
    assert one.calls[-4:] == [1, 2, 3, 4]
    assert [event.type for event in store.read_stream("ledger-1")] == ["Noted"]


@pytest.mark.parametrize(
    ("once", "category", "why"),
    [
        ("MessageIdInEvents()", "payment", "type Paid in payment .* their events in the log"),
        ("None", "ledger:command", "type Keep in ledger:command .* their reservations are in"),
    ],
)
def test_what_the_log_shows_cannot_be_handled_anew(ledger, connection, once, category, why):
    """It is refused with the reason, and nothing is changed."""
    one = ledger(once)
    before = connection.execute("SELECT * FROM reservation.positions ORDER BY 2").fetchall()
    said = " ".join(one.reset(category, "--again", status=2).split())
    assert re.search(why, said), said
    assert connection.execute("SELECT * FROM reservation.positions ORDER BY 2").fetchall() == before
