"""Messages that were stored in former shapes, and how those of today are stored."""

import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest

from reservation import Component, Key, Metadata, Upcast, Write
from reservation.errors import DecodeError, EncodeError
from reservation.strategies import StateBased
from tests.apps.bank import drain
from tests.apps.changing import SENT, Jar, Put, raw

# A payment of three shapes: {"cents": 5}, {"amount": 0.05}, {"amount": 0.05, "currency": "EUR"}.


@dataclass(frozen=True)
class Paid:
    __schema_version__ = 3

    purse_id: str
    amount: Decimal
    currency: str


@dataclass(frozen=True)
class Pay:
    __schema_version__ = 3

    purse_id: str
    pay_id: str
    amount: Decimal
    currency: str


@dataclass(frozen=True)
class Seen:
    paid: list[str]


@dataclass
class Purse:
    paid: list[str] = field(default_factory=list)


def to_amount(data: dict[str, Any]) -> dict[str, Any]:
    data["amount"] = Decimal(data.pop("cents")) / 100
    return data


def with_currency(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"currency": "EUR"}


def purse(once: Any = None, key: Any = None, former_names: Any = ()) -> Component:
    """Return a component that pays, and writes to a stream of another category what it has seen."""
    component = Component("purse", entity=Purse, id="purse_id")

    @component.handle(Pay, key=key, once=once)
    def pay(command, entity, context):
        context.write(Seen(entity.paid if once is None else []), "seen-1")
        return context.follow(command, Paid)

    @component.project(Paid)
    def paid(entity, event):
        entity.paid.append(f"{event.amount} {event.currency}")

    component.message(Pay, upcast=[to_amount, with_currency])
    component.message(Paid, former_names=former_names, upcast=[to_amount, with_currency])
    return component


COMMANDS = "purse:command-1"


EVENTS: list[tuple[dict[str, Any], object]] = [
    ({"purseId": "1", "cents": 5}, None),
    ({"purseId": "1", "cents": 105}, 1),
    ({"purseId": "1", "amount": 0.1}, 2),
    ({"purseId": "1", "amount": 0.2}, "2"),
    ({"purseId": "1", "amount": 3, "currency": "USD"}, 3),
]


def seen(store):
    """Return what the handlers have seen of their entities."""
    return [json.loads(message.data)["paid"] for message in store.read_stream("seen-1")]


def send_all_shapes(connection, store):
    """Send a command of each shape, the first as a client that knows nothing of versions."""
    raw(connection, COMMANDS, "Pay", {"purseId": "1", "payId": "a", "cents": 5})
    raw(connection, COMMANDS, "Pay", {"purseId": "1", "payId": "b", "amount": 1.10}, "2")
    store.write([Pay("1", "c", Decimal(2), "CHF")], COMMANDS)


@pytest.mark.parametrize(("size", "name"), [(1, "Paid"), (1000, "Spent")])
def test_events_of_all_shapes_are_projected_as_the_newest(connection, store, size, name):
    """Under a former name too; and what the component writes itself is read as it is."""
    for data, version in EVENTS:
        raw(connection, "purse-1", name, data, version)
    sent = [Pay("1", "a", Decimal("1.10"), "CHF"), Pay("1", "b", Decimal(2), "CHF")]
    store.write(sent, COMMANDS)
    drain(connection, purse(former_names="Spent"), batch_size=size)
    before = ["0.05 EUR", "1.05 EUR", "0.1 EUR", "0.2 EUR", "3 USD"]
    assert seen(store) == [before, [*before, "1.10 CHF"]]
    versions = [m.metadata.schema_version for m in store.read_stream("purse-1")]
    assert versions == [None, 1, 2, "2", 3, 3, 3]


@pytest.mark.parametrize("once", [None, StateBased()], ids=["events", "states"])
def test_commands_of_all_shapes_are_handled_as_the_newest(connection, store, once):
    """Whoever sent them."""
    send_all_shapes(connection, store)
    drain(connection, purse(once))
    found = [json.loads(m.data) for m in store.read_stream("purse-1")]
    paid = [(one["amount"], one["currency"]) for one in found]
    assert paid == [(0.05, "EUR"), (1.1, "EUR"), (2, "CHF")]


def test_a_copy_has_the_version_of_its_command(connection, store):
    """So it is upcast once, from the shape that it has."""
    send_all_shapes(connection, store)
    done = drain(connection, purse(key="pay_id"))
    assert done.counts == {"reserved": 3, "handled": 3}
    copies = store.read_category("purseTransaction")
    assert [m.metadata.schema_version for m in copies] == [None, "2", 3]
    paid = [json.loads(m.data)["currency"] for m in store.read_stream("purse-1")]
    assert paid == ["EUR", "EUR", "CHF"]


def test_a_key_may_come_from_a_field_of_another_name(connection, store):
    """The server could not know it."""

    @dataclass(frozen=True)
    class Put:
        jar_id: str
        put_id: str

    def renamed(data):
        return {"jarId": data["jar"], "putId": data["id"]}

    component = Component("jar", id="jar_id")
    component.handle(Put, key=Key("put_id", per=None))(lambda *_: None)
    component.message(Put, version=2, upcast=renamed)
    raw(connection, SENT, "Put", {"jar": "1", "id": "a", "putId": "x"})
    raw(connection, SENT, "Put", {"jarId": "1", "putId": "a"}, 2)
    assert drain(connection, component).counts == {"reserved": 1, "handled": 1, "duplicate": 1}
    assert store.stream_version("jarTransaction-a") == 0


# Letters


@pytest.mark.parametrize("of", ["the command", "an event"])
def test_what_cannot_be_upcast_makes_its_command_a_dead_letter(connection, store, of):
    """For its own upcaster, and for that of an event of its entity."""
    if of == "the command":
        raw(connection, COMMANDS, "Pay", {"purseId": "1", "payId": "a"})
    else:
        raw(connection, "purse-1", "Paid", {"purseId": "1"})
    store.write([Pay("1", "b", Decimal(1), "EUR"), Pay("2", "c", Decimal(1), "EUR")], COMMANDS)
    assert drain(connection, purse()).counts["dead"] == 1
    letters = connection.execute("SELECT reason, error FROM reservation.dead_letters").fetchall()
    assert "KeyError in to_amount" in dict(letters)["undecodable"]
    assert store.stream_version("purse-2") == 0


@dataclass
class Sealed:
    """A class whose shape has not changed yet, here."""

    purse_id: str
    __schema_version__ = 1


@dataclass
class Plain:
    """A class that says no version."""

    purse_id: str


@pytest.mark.parametrize("class_", [Sealed, Plain])
def test_a_letter_of_a_newer_shape_names_both_versions(connection, store, class_):
    """Where the class has no upcasters, and the data does not fit it."""
    component = Component("purse", id="purse_id")
    component.handle(class_, once=None)(lambda command, entity, context: None)
    raw(connection, COMMANDS, class_.__name__, {"walletId": "1"}, 2)
    assert drain(connection, component).counts["dead"] == 1
    ((said,),) = connection.execute("SELECT error FROM reservation.dead_letters").fetchall()
    assert "written by schemaVersion 2, and this program knows 1" in said
    (stored,) = store.read_category("purse:command")
    with pytest.raises(DecodeError, match="written by schemaVersion 2, and this program knows 1"):
        stored.decode(class_)


# What is written


def test_a_message_without_versions_is_written_without_one(connection, store):
    """Predicates alone change nothing in what is stored."""
    component = Component("purse", id="purse_id")
    component.message(Plain, upcast=Upcast(lambda data: data, when=lambda data: False))
    component.handle(Pay, once=None)(lambda *_: Plain("1"))
    component.message(Pay, upcast=[to_amount, with_currency])
    store.write(Pay("1", "a", Decimal(1), "EUR"), COMMANDS)
    drain(connection, component)
    (message,) = store.read_stream("purse-1")
    assert message.metadata.schema_version is None


def test_a_version_is_that_of_one_message_alone(connection, store):
    """It is not handed on to what follows, nor to events of classes without one."""

    @dataclass(frozen=True)
    class Noted:
        purse_id: str

    component = Component("purse", entity=Purse, id="purse_id")
    component.message(Noted, Paid)
    component.handle(Pay, once=None)(
        lambda command, *_: [Noted("1"), Paid("1", Decimal(1), "EUR"), Noted("1")]
    )
    component.message(Pay, upcast=[to_amount, with_currency])
    store.write(
        [Pay("1", "a", Decimal(1), "EUR")], COMMANDS, metadata=Metadata(properties={"a": 1})
    )
    drain(connection, component)
    found = [(m.type, m.metadata.schema_version) for m in store.read_stream("purse-1")]
    assert found == [("Noted", None), ("Paid", 3), ("Noted", None)]
    assert all(m.metadata.properties == {"a": 1} for m in store.read_stream("purse-1"))


def test_a_sender_cannot_write_another_version_than_the_class_has(store):
    """The shape is that of the class."""
    write = Write(Pay("1", "a", Decimal(1), "EUR"), COMMANDS, metadata=Metadata(schema_version=2))
    with pytest.raises(EncodeError, match="its class is at version 3; leave schema_version out"):
        store.write_batch([write])
    store.write(write.message, COMMANDS, metadata=Metadata(schema_version=3))
    assert [m.metadata.schema_version for m in store.read_stream(COMMANDS)] == [3]


# Snapshots


CHANGES = {
    "none": None,
    "another": Upcast(lambda data: data | {"a": 1}, when=lambda data: True),
    "another function": Upcast(lambda data: data | {"a": 2}, when=lambda data: True),
    "another predicate": Upcast(lambda data: data | {"a": 2}, when=lambda data: data.get("a") == 3),
}


def coins(upcaster: Upcast | None) -> Component:
    """Return a component that keeps snapshots of what an upcaster may have changed."""
    component = Component("jar", entity=Jar, id="jar_id", snapshot_every=1)
    component.handle(Put, once=None)(lambda *_: Plain("1"))
    component.project(Plain)(lambda entity, event: None)
    component.message(Plain, upcast=[upcaster] if upcaster else [])
    return component


def test_a_snapshot_is_not_used_by_code_with_other_upcasters(connection, store):
    """It may hold what another upcaster made."""
    revisions = []
    for upcaster in (*CHANGES.values(), CHANGES["another"]):
        store.write(Put("1", "p"), SENT)
        drain(connection, coins(upcaster))
        query = "SELECT revision FROM reservation.snapshots"
        revisions += connection.execute(query).fetchall()[-1]
    assert len(set(revisions)) == len(CHANGES)
    assert revisions[-1] == revisions[1]
