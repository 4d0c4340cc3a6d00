"""Snapshots: a long stream is not read from its beginning, and nothing else changes."""

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
import structlog
from psycopg.types.json import Jsonb

from bank.messages import Deposit
from reservation import Component, MessageStore
from reservation.entity.cache import EntityCache
from reservation.errors import DeclarationError, HandlerError
from tests.bank import batch, batches, drain
from tests.controls import deposit

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


def purse(every=3, *, entity=Purse, projector=add, **options):
    """Return a component whose events repeat what the handler saw."""
    component = Component("purse", entity=entity, id="account_id", snapshot_every=every, **options)

    @component.handle(Deposit)
    def pay(command, entity, context):
        if command.deposit_id == "bad":
            raise ValueError
        return Paid(command.account_id, command.amount, entity.balance)

    component.project(Paid)(projector)
    return component


def pay(store, *keys, account="123", amount="1.50"):
    store.write([deposit(key, amount, account) for key in keys], SENT)


def snapshots(connection):
    """Return the position of each snapshot, by its stream."""
    rows = connection.execute("SELECT stream_name, position FROM reservation.snapshots").fetchall()
    return dict(rows)


def load(connection, component, name="purse-123"):
    """Return an entity as a consumer that has just started gets it."""
    cache = EntityCache(
        component.entity, component.projection, snapshots=component.snapshots(connection)
    )
    return cache.load(MessageStore(connection), [name])[name]


def totals(store, account="123"):
    return [m.decode(Paid).total for m in store.read_stream(f"purse-{account}")]


def test_a_snapshot_is_taken_after_enough_events(connection, store):
    """A snapshot is taken after the declared number of events, and again after as many."""
    claimed = batch(connection, "purse:command", purse(3))
    taken = []
    for n in range(8):
        pay(store, f"d{n}")
        claimed.run(100)
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
    loaded = load(connection, purse(4))
    assert (loaded.version, loaded.entity.balance) == (6, Decimal("10.50"))
    assert loaded.entity.coins == [Coin(Decimal("1.50"))] * 7


def test_a_batch_takes_its_snapshots_in_one_statement(connection, store):
    """A batch takes the snapshots of all its entities in one statement."""
    for n in range(50):
        pay(store, *(f"{n}-{m}" for m in range(1 + n % 3)), account=str(n))
    drain(connection, purse(2))
    expected = {f"purse-{n}": n % 3 for n in range(50) if n % 3}
    assert snapshots(connection) == expected
    calls = connection.execute(
        "SELECT count(DISTINCT xmin::text) FROM reservation.snapshots"
    ).fetchone()
    assert calls[0] <= 2  # there are two batches of 100


def test_an_entity_with_a_long_stream_gets_one_when_it_is_read(connection, store):
    """An entity with a stream from before the declaration gets a snapshot when it is read."""
    plain = purse(None)
    pay(store, *"abcdef")
    drain(connection, plain)
    assert snapshots(connection) == {}
    pay(store, "g")
    drain(connection, purse(5))
    assert snapshots(connection) == {"purse-123": 6}


def test_a_batch_that_fails_leaves_no_snapshot(connection, store):
    """A batch that fails leaves no snapshot, so none is ahead of its stream."""
    pay(store, "a", "b", "bad")
    claimed = batch(connection, "purse:command", purse(1))
    with pytest.raises(HandlerError):
        claimed.run(100)
    assert snapshots(connection) == {}
    claimed.run(2)
    assert snapshots(connection) == {"purse-123": 1}


def change(connection, **values):
    for name, value in values.items():
        connection.execute(f"UPDATE reservation.snapshots SET {name} = %s", [value])


@pytest.mark.parametrize(
    "values",
    [
        {"data": Jsonb({"balance": "x"})},
        {"data": Jsonb([])},
        {"data": Jsonb(None)},
        {"data": Jsonb({"balance": 5, "coins": 3})},
        {"position": 100},
        {"revision": "1"},
    ],
)
def test_an_inconsistent_snapshot_is_ignored(connection, store, values):
    """An inconsistent snapshot is ignored and replaced."""
    pay(store, *"abc")
    drain(connection, purse(3))
    change(connection, **values)
    pay(store, "d")
    drain(connection, purse(3))
    assert totals(store)[3] == Decimal("4.50")


def test_a_snapshot_of_other_code_is_ignored(connection, store):
    """A snapshot of another version, of other fields or event types is ignored."""

    @dataclass
    class Wallet(Purse):
        owner: str = ""

    pay(store, *"abc")
    drain(connection, purse(3))
    change(connection, data=Jsonb({"balance": 77, "coins": []}))
    assert load(connection, purse(3)).entity.balance == 77  # it is used indeed
    more = purse(3)
    more.project(Coin)(lambda entity, event: None)
    for other in (purse(3, snapshot_revision=2), purse(3, entity=Wallet), more):
        assert load(connection, other).entity.balance == Decimal("4.50")


def test_another_form_of_a_nested_class_is_another_code(connection, store):
    """A changed nested class makes a snapshot obsolete."""

    def nested(kind):
        @dataclass
        class Inner:
            worth: kind

        @dataclass
        class Outer:
            balance: Decimal = Decimal(0)
            coins: list[Inner] = field(default_factory=list)

        return Outer

    revisions = {
        purse(3, entity=nested(kind)).snapshots(connection).revision for kind in (int, str, int)
    }
    assert len(revisions) == 2


def test_of_two_snapshots_by_the_same_code_the_later_stays(connection, store):
    """Of two snapshots by the same code the later one is kept."""
    pay(store, *"abcdef")
    drain(connection, purse(3))
    component = purse(3)
    late = component.snapshots(connection)
    loaded = load(connection, component)
    loaded.version, loaded.snapshot = 3, -1
    assert late.write({"purse-123": loaded}) == []
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
        pay(store, *"abc")
        drain(connection, component)
        pay(store, *"d")
        drain(connection, component)
    assert snapshots(connection) == {}
    assert totals(store)[3] == Decimal("4.50")
    warnings = [
        (entry["log_level"], entry["stream_name"]) for entry in logs if "snapshot" in entry["event"]
    ]
    assert warnings == [("warning", "purse-123")] * 2


def test_the_role_of_a_consumer_can_keep_snapshots(connection, store):
    """The consumer's role can store snapshots with its usual grants."""
    from reservation.store.schema.roles import grant

    role = f"keeper_{connection.info.dbname}"
    grant(connection, "consumer", role)
    pay(store, *"abc")
    try:
        connection.execute(f"SET ROLE {role}")
        drain(connection, purse(3))
        assert load(connection, purse(3)).snapshot == 2
    finally:
        connection.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")


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


def test_without_the_declaration_there_are_none(connection, store):
    """Without the declaration snapshots are neither written nor read."""
    pay(store, *"abcdef")
    (result,) = batches(connection, purse(None))
    assert result.counts == Counter(handled=6)
    assert snapshots(connection) == {}
