"""Snapshots: a long stream is not read from its beginning, and nothing else changes."""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
import structlog
from psycopg.types.json import Jsonb

from bank.messages import Deposit
from reservation import Component
from reservation.errors import DeclarationError
from tests.apps.bank import drain
from tests.support.controls import deposit

SENT = "purse:command-123"


@dataclass(frozen=True)
class Paid:
    account_id: str
    amount: Decimal
    total: Decimal


@dataclass
class Coin:
    worth: Decimal


@dataclass
class Purse:
    balance: Decimal = Decimal(0)
    coins: list[Coin] = field(default_factory=list)


def add(entity, event):
    entity.balance += event.amount
    entity.coins.append(Coin(event.amount))


def purse(every=3, *, entity=Purse, projector=add, happens=lambda command: None, **options):
    """Return a component whose events repeat what the handler saw."""
    component = Component("purse", entity=entity, id="account_id", snapshot_every=every, **options)

    @component.handle(Deposit, once=None)
    def pay(command, entity, context):
        happens(command)
        if command.deposit_id == "bad":
            raise ValueError
        if command.deposit_id == "nothing":
            return None
        return Paid(command.account_id, command.amount, entity.balance)

    component.project(Paid)(projector)
    return component


def pay(store, *keys, account="123", amount="1.50"):
    store.write([deposit(key, amount, account) for key in keys], SENT)


def snapshots(connection):
    """Return the position of each snapshot, by its stream."""
    rows = connection.execute("SELECT stream_name, position FROM reservation.snapshots").fetchall()
    return dict(rows)


def change(connection, stream_name, **values):
    for name, value in values.items():
        connection.execute(
            f"UPDATE reservation.snapshots SET {name} = %s WHERE stream_name = %s",
            [value, stream_name],
        )


def totals(store, account="123"):
    return [m.decode(Paid).total for m in store.read_stream(f"purse-{account}")]


def test_a_snapshot_is_taken_after_enough_events(connection, store):
    """A snapshot is taken after the declared number of events, and again after as many."""
    component, taken = purse(3), []
    for n in range(8):
        pay(store, f"d{n}")
        drain(connection, component)
        taken.append(snapshots(connection).get("purse-123"))
    assert taken == [None, None, 2, 2, 2, 5, 5, 5]


def test_only_what_came_after_the_snapshot_is_read(connection, store):
    """Only events behind a snapshot are read, and the one that it stands at."""
    pay(store, *"abcd")
    drain(connection, purse(4))
    pay(store, *"ef")
    drain(connection, purse(4))
    connection.execute(
        "DELETE FROM message_store.messages WHERE stream_name = 'purse-123' AND position < 3"
    )
    pay(store, "g")
    drain(connection, purse(4))
    assert totals(store) == [Decimal("1.50") * n for n in range(3, 7)]


def test_a_batch_takes_its_snapshots_in_one_statement(connection, store):
    """Each entity that is due gets one, from one statement for the batch."""
    for n in range(50):
        pay(store, *(f"{n}-{m}" for m in range(1 + n % 3)), account=str(n))
    drain(connection, purse(2))
    assert snapshots(connection) == {f"purse-{n}": n % 3 for n in range(50) if n % 3}
    statements = "SELECT count(DISTINCT (xmin::text, cmin::text)) FROM reservation.snapshots"
    assert connection.execute(statements).fetchone() == (1,)


def test_an_entity_with_a_long_stream_gets_one_when_it_is_read(connection, store):
    """An entity with a stream from before the declaration gets a snapshot when it is read."""
    pay(store, *"abcdef")
    drain(connection, purse(None))
    assert snapshots(connection) == {}
    pay(store, "g")
    drain(connection, purse(5))
    assert snapshots(connection) == {"purse-123": 6}


def test_a_message_that_fails_is_in_no_snapshot(connection, store):
    """Of a batch that fails there is none, so none is ahead of its stream."""
    pay(store, "a", "b", "bad", "c")
    assert drain(connection, purse(1)).counts == {"handled": 2, "dead": 1, "parked": 1}
    assert snapshots(connection) == {"purse-123": 1}


INCONSISTENT = [
    {"data": Jsonb({"balance": "x"})},
    {"data": Jsonb([])},
    {"data": Jsonb(None)},
    {"data": Jsonb({"balance": 5, "coins": 3})},
    {"position": 100},
    {"revision": "1"},
]


def test_an_inconsistent_snapshot_is_ignored(connection, store):
    """An inconsistent snapshot is ignored and replaced."""
    for n in range(len(INCONSISTENT)):
        pay(store, *"abc", account=str(n))
    drain(connection, purse(3))
    for n, values in enumerate(INCONSISTENT):
        change(connection, f"purse-{n}", **values)
    for n in range(len(INCONSISTENT)):
        pay(store, "d", account=str(n))
    drain(connection, purse(3))
    found = {str(values): totals(store, str(n))[3] for n, values in enumerate(INCONSISTENT)}
    assert found == {str(values): Decimal("4.50") for values in INCONSISTENT}


@dataclass
class Wallet(Purse):
    owner: str = ""


@dataclass
class Piece:
    worth: str


@dataclass
class Pieces(Purse):
    coins: list[Piece] = field(default_factory=list)


def further():
    component = purse(3)
    component.project(Coin)(lambda entity, event: None)
    return component


OTHERS = {
    "the same": (purse, 77),
    "a revision": (lambda: purse(3, snapshot_revision=2), Decimal("4.50")),
    "a field": (lambda: purse(3, entity=Wallet), Decimal("4.50")),
    "a nested class": (lambda: purse(3, entity=Pieces), Decimal("4.50")),
    "an event": (further, Decimal("4.50")),
}


def test_a_snapshot_of_other_code_is_ignored(connection, store):
    """A snapshot of another version, of other fields or event types is ignored."""
    for name in OTHERS:
        pay(store, *"abc", account=name)
    drain(connection, purse(3))
    for name in OTHERS:
        change(connection, f"purse-{name}", data=Jsonb({"balance": 77, "coins": []}))
    found = {}
    for name, (other, _) in OTHERS.items():
        pay(store, "d", account=name)
        drain(connection, other())
        found[name] = totals(store, name)[3]
    assert found == {name: total for name, (_, total) in OTHERS.items()}


def test_of_two_snapshots_by_the_same_code_the_later_stays(connection, store):
    """One that another process has taken meanwhile is not replaced by an earlier one."""
    pay(store, *"abcdef")
    drain(connection, purse(3))
    connection.execute(
        "CREATE TEMPORARY TABLE later AS TABLE reservation.snapshots;"
        "DELETE FROM reservation.snapshots;"
        "UPDATE message_store.messages SET stream_name = 'hidden-1' "
        "WHERE stream_name = 'purse-123' AND position > 2"
    )

    def go_on(command):
        """Let another process be where it was."""
        connection.execute(
            "UPDATE message_store.messages SET stream_name = 'purse-123' "
            "WHERE stream_name = 'hidden-1';"
            "INSERT INTO reservation.snapshots TABLE later"
        )

    pay(store, "nothing")
    assert drain(connection, purse(3, happens=go_on)).counts == {"handled": 1}
    assert snapshots(connection) == {"purse-123": 5}


@dataclass
class Odd:
    balance: Decimal = Decimal(0)
    coins: list[Any] = field(default_factory=list)


@dataclass
class Hiding(Purse):
    def __post_init__(self):
        self.hidden = 0


@pytest.mark.parametrize("entity", [Odd, Hiding])
def test_an_entity_that_json_would_change_gets_no_snapshot(connection, store, entity):
    """An entity that JSON would change gets no snapshot but a logged warning."""

    def add_oddly(entity, event):
        entity.balance += event.amount
        if isinstance(entity, Odd):
            entity.coins.append(event.amount)  # which would come back as a float
        else:
            entity.hidden += 1

    component = purse(2, entity=entity, projector=add_oddly)
    with structlog.testing.capture_logs() as logs:
        for keys in ("abc", "d"):
            pay(store, *keys)
            drain(connection, component)
    assert snapshots(connection) == {}
    assert totals(store)[3] == Decimal("4.50")
    warnings = [
        (entry["log_level"], entry["stream_name"]) for entry in logs if "snapshot" in entry["event"]
    ]
    assert warnings == [("warning", "purse-123")] * 2


class Plain:
    balance = 0


@dataclass
class Unfit:
    value: complex = 0j


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"entity": None}, "the entity is None"),
        ({"entity": Plain}, "the entity is Plain; decorate it with @dataclass"),
        ({"entity": Unfit}, "Unfit cannot be kept as a snapshot"),
        ({"every": 0}, "snapshot_every is a whole number from 1, not 0"),
        ({"every": "100"}, "snapshot_every is a whole number from 1, not '100'"),
        ({"every": True}, "not True"),
        ({"snapshot_revision": 0}, "snapshot_revision is a whole number from 1, not 0"),
    ],
)
def test_a_wrong_snapshot_declaration_is_refused(options, problem):
    """A wrong declaration of snapshots is refused when it is made."""
    with pytest.raises(DeclarationError, match=problem):
        purse(**options)
