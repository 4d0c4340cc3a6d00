"""Shapes that change: upcasters make an object of a former shape one of the next."""

import copy
import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reservation import Component, StateBased, StoredMessage, Write
from reservation.errors import DeclarationError, DecodeError, EncodeError, UnknownTypeError
from reservation.idempotence.server_keys import server_rules
from reservation.messages.metadata import Metadata
from reservation.messages.upcasting import code_of
from reservation.testing import NotDeterministicError, check_deterministic, check_upcast
from tests.bank import batch, drain
from tests.changing import SENT, Jar, raw
from tests.controls import TIME

SIZES = [1, 3, 1000]


# A purse of three shapes: {"cents": 5}, {"amount": 0.05}, {"amount": 0.05, "currency": "EUR"}.


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


@dataclass
class Purse:
    paid: list[str]

    def __init__(self) -> None:
        self.paid = []


def to_amount(data: dict[str, Any]) -> dict[str, Any]:
    data["amount"] = Decimal(data.pop("cents")) / 100
    return data


def with_currency(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"currency": "EUR"}


def upcasting(component: Component, *classes: Any) -> Component:
    for class_ in classes:
        component.upcast(class_, to=2)(to_amount)
        component.upcast(class_, to=3)(with_currency)
    return component


def purse(once: Any = None, **names: Any) -> Component:
    """Return a component that pays, and writes to a stream of another category what it has seen."""
    component = Component("purse", entity=Purse, id="purse_id")

    @component.handle(Pay, once=once)
    def pay(command, entity, context):
        context.write(Seen(entity.paid if once is None else []), "seen-1")
        return context.follow(command, Paid)

    @component.project(Paid, **names)
    def paid(entity, event):
        entity.paid.append(f"{event.amount} {event.currency}")

    return upcasting(component, Pay, Paid)


@dataclass(frozen=True)
class Seen:
    paid: list[str]


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


# Events


@pytest.mark.parametrize("size", SIZES)
def test_events_of_all_shapes_are_projected_as_the_newest(connection, store, size):
    """And what the component writes itself is read as it is."""
    for data, version in EVENTS:
        raw(connection, "purse-1", "Paid", data, version)
    store.write([Pay("1", "a", Decimal("1.10"), "CHF"), Pay("1", "b", Decimal(2), "CHF")], SENT_PAY)
    one = batch(connection, "purse:command", purse())
    while one.run(size).read:
        pass
    before = ["0.05 EUR", "1.05 EUR", "0.1 EUR", "0.2 EUR", "3 USD"]
    assert seen(store) == [before, [*before, "1.10 CHF"]]
    versions = [m.metadata.schema_version for m in store.read_stream("purse-1")]
    assert versions == [None, 1, 2, "2", 3, 3, 3]


SENT_PAY = "purse:command-1"


def test_names_and_shapes_change_independently(connection, store):
    """A former name has the versions of the class that it belongs to now."""
    for data, version in EVENTS:
        raw(connection, "purse-1", "Spent", data, version)
    store.write([Pay("1", "a", Decimal(1), "CHF")], SENT_PAY)
    drain(connection, purse(was="Spent"))
    assert len(seen(store)[0]) == len(EVENTS)


@pytest.mark.parametrize("once", [None, StateBased()], ids=["events", "states"])
def test_commands_of_all_shapes_are_handled_as_the_newest(connection, store, once):
    """Sent by clients that know nothing of versions too."""
    raw(connection, SENT_PAY, "Pay", {"purseId": "1", "payId": "a", "cents": 5})
    raw(connection, SENT_PAY, "Pay", {"purseId": "1", "payId": "b", "amount": 1.10}, 2)
    store.write([Pay("1", "c", Decimal(2), "CHF")], SENT_PAY)
    drain(connection, purse(once))
    found = [json.loads(m.data) for m in store.read_stream("purse-1")]
    assert [(one["amount"], one["currency"]) for one in found] == [
        (0.05, "EUR"),
        (1.1, "EUR"),
        (2, "CHF"),
    ]


@pytest.mark.parametrize("into", ["purseTransaction", None], ids=["apart", "within"])
@pytest.mark.parametrize("same_key", [False, True], ids=["reader", "server"])
def test_a_copy_has_the_version_of_its_command(connection, store, into, same_key):
    """So it is upcast once, from the shape that it has."""
    component = purse()
    component.reserve(Pay, into=into, key="pay_id", same_key=same_key)
    raw(connection, SENT_PAY, "Pay", {"purseId": "1", "payId": "a", "cents": 5})
    raw(connection, SENT_PAY, "Pay", {"purseId": "1", "payId": "b", "amount": 1.10}, "2")
    store.write([Pay("1", "c", Decimal(2), "CHF")], SENT_PAY)
    done = drain(connection, component)
    assert done.counts == {"reserved": 3, "handled": 3}
    category = into or "purse:command"
    copies = [m for m in store.read_category(category) if m.metadata.causation_message_position]
    assert [m.metadata.schema_version for m in copies][-2:] == ["2", 3]
    paid = [json.loads(m.data)["currency"] for m in store.read_stream("purse-1")]
    assert paid == ["EUR", "EUR", "CHF"]


def test_the_server_takes_no_key_of_an_upcast_command():
    """Unless it is declared that its fields were always the same."""
    component = purse()
    component.reserve(Pay, into="purseTransaction", key="pay_id")
    assert server_rules(component.server_keys) == "[]"


def test_a_key_may_come_from_a_field_of_another_name(connection, store):
    """The server could not know it."""

    @dataclass(frozen=True)
    class Put:
        __schema_version__ = 2
        jar_id: str
        put_id: str

    component = Component("jar", id="jar_id")
    component.reserve(Put, into="jarTransaction", key="put_id")
    component.handle(Put)(lambda *_: None)
    component.upcast(Put, to=2)(lambda data: {"jarId": data["jar"], "putId": data["id"]})
    raw(connection, SENT, "Put", {"jar": "1", "id": "a", "putId": "x"})
    store.write([Put("1", "a")], SENT)
    assert drain(connection, component).counts == {"reserved": 1, "handled": 1, "duplicate": 1}
    assert store.stream_version("jarTransaction-a") == 0


# Predicates


@dataclass(frozen=True)
class Measured:
    sensor_id: str
    celsius: float
    place: str


def sensor() -> Component:
    """Return a component whose messages have no versions, and had three shapes."""
    component = Component("sensor", id="sensor_id")
    component.handle(Measured)(lambda *_: None)

    @component.upcast(Measured, to=2, when=lambda data: "fahrenheit" in data)
    def to_celsius(data):
        return {"sensorId": data["sensorId"], "celsius": (data["fahrenheit"] - 32) / Decimal("1.8")}

    component.upcast(Measured, to=3, when=lambda data: "place" not in data)(
        lambda data: data | {"place": "unknown"}
    )
    return component


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"sensorId": "1", "fahrenheit": 212}, (100.0, "unknown")),
        ({"sensorId": "1", "celsius": 20.5}, (20.5, "unknown")),
        ({"sensorId": "1", "celsius": 20.5, "place": "roof"}, (20.5, "roof")),
    ],
)
@pytest.mark.parametrize("version", [None, 1, 7, "of a client of its own"])
def test_a_shape_can_be_recognized_by_the_object_itself(data, expected, version):
    """Then a version means nothing, whoever wrote it."""
    made = check_upcast(sensor(), Measured, data, version=version)
    assert (made.celsius, made.place) == expected


def test_a_message_without_versions_is_written_without_one(store):
    """Predicates alone change nothing in what is stored."""
    store.write(Measured("1", 20.5, "roof"), "sensor:command-1")
    (message,) = store.read_stream("sensor:command-1")
    assert message.metadata_json is None


def test_a_predicate_may_be_combined_with_a_version():
    """Of the messages without a version, some have the second shape already."""

    @dataclass(frozen=True)
    class Put:
        __schema_version__ = 3
        jar_id: str
        coins: int
        by: str

    component = Component("jar", id="jar_id")
    component.handle(Put)(lambda *_: None)
    component.upcast(Put, to=2, when=lambda data: "count" in data)(
        lambda data: {"jarId": data["jarId"], "coins": data["count"]}
    )
    component.upcast(Put, to=3)(lambda data: data | {"by": "somebody"})
    assert check_upcast(component, Put, {"jarId": "1", "count": 4}) == Put("1", 4, "somebody")
    assert check_upcast(component, Put, {"jarId": "1", "coins": 4}) == Put("1", 4, "somebody")
    data = {"jarId": "1", "coins": 4, "by": "me"}
    assert check_upcast(component, Put, data, version=3) == Put("1", 4, "me")


# Numbers


def test_numbers_keep_their_digits():
    """Those that an upcaster passes on, and those that it makes."""

    @dataclass(frozen=True)
    class Sum:
        __schema_version__ = 2
        jar_id: str
        exact: Decimal
        made: Decimal
        count: int
        rest: Any

    component = Component("jar", id="jar_id")
    component.handle(Sum)(lambda *_: None)
    found = []

    @component.upcast(Sum, to=2)
    def upcast(data):
        found.append(data["exact"])
        return data | {"made": data["exact"] * 2}

    text = (
        '{"jarId": "1", "exact": 12345678901234567890.10, "count": 98765432109876543210,'
        ' "rest": [1.50, {"a": 1e2}]}'
    )
    made = component.decode(message(text, "Sum"))
    assert made.exact == Decimal("12345678901234567890.10")
    assert str(made.exact) == "12345678901234567890.10"
    assert str(made.made) == "24691357802469135780.20"
    assert (made.count, made.rest) == (98765432109876543210, [1.5, {"a": 100.0}])
    assert type(found[0]) is Decimal


def message(data: str | None, type_: str = "Paid", metadata: str | None = None) -> StoredMessage:
    id_ = "0190163d-8694-739b-aea5-966c26f8ad91"
    return StoredMessage(id_, "purse-1", type_, 0, 1, data, metadata, TIME)


# Failures


def fails(data):
    raise ZeroDivisionError("secret")


BAD: dict[str, Any] = {
    "raises": (fails, "to 2, fails, raised ZeroDivisionError in fails"),
    "none": (lambda data: None, "returned a NoneType; let it return the object"),
    "list": (lambda data: [data], "returned a list"),
    "no shape": (
        lambda data: {"amount": "secret"},
        r"after its upcasters: Invalid decimal string - at `\$.amount`",
    ),
    "no form": (lambda data: {"amount": object()}, "after its upcasters"),
    "not finite": (lambda data: {"amount": Decimal("NaN")}, "after its upcasters"),
    "itself": (lambda data: data.update(a=data) or data, "after its upcasters"),
}


@pytest.mark.parametrize(("upcaster", "problem"), BAD.values(), ids=BAD)
def test_an_upcaster_that_fails_makes_a_message_undecodable(upcaster, problem):
    """The error names it, and nothing of the data."""

    @dataclass(frozen=True)
    class Paid:
        __schema_version__ = 2
        purse_id: str
        amount: Decimal

    component = Component("purse", entity=Jar, id="purse_id")
    component.project(Paid)(lambda entity, event: None)
    component.upcast(Paid, to=2)(upcaster)
    with pytest.raises(DecodeError, match=problem) as caught:
        component.decode(message('{"purseId": "secret"}'))
    assert "secret" not in str(caught.value)


def test_a_predicate_that_raises_does_so_too():
    """With its own name."""
    component = Component("sensor", id="sensor_id")

    def recognizes(data):
        return data["celsius"] > 3

    component.upcast(Measured, to=2, when=recognizes)(lambda data: data)
    with pytest.raises(DecodeError, match="recognizes, raised KeyError"):
        component.decode(message("{}", "Measured"))


@pytest.mark.parametrize("of", ["the command", "an event"])
def test_the_command_becomes_a_dead_letter(connection, store, of):
    """For its own upcaster, and for that of an event of its entity."""
    if of == "the command":
        raw(connection, SENT_PAY, "Pay", {"purseId": "1", "payId": "a"})
    else:
        raw(connection, "purse-1", "Paid", {"purseId": "1"})
    store.write([Pay("1", "b", Decimal(1), "EUR"), Pay("2", "c", Decimal(1), "EUR")], SENT_PAY)
    done = drain(connection, purse())
    assert done.counts["dead"] == 1
    letters = connection.execute("SELECT reason, error FROM reservation.dead_letters ORDER BY 1")
    reasons = dict(letters.fetchall())
    assert "KeyError in to_amount" in reasons["undecodable"]
    assert store.stream_version("purse-2") == 0


@pytest.mark.parametrize("version", [0, 4, -1, "v2", "", 1.5, "4", "00000000002", "²"])
def test_a_version_that_the_class_does_not_have_is_refused(version):
    """It may have been written by newer code."""
    text = json.dumps({"schemaVersion": version})
    with pytest.raises(DecodeError, match=r"a schemaVersion that is none of 1 to 3, .*\.Paid"):
        purse().decode(message('{"purseId": "1"}', metadata=text))


@pytest.mark.parametrize("version", ["null", "true", '{"a": 1}', "[2]"])
def test_what_can_be_no_version_is_none(version):
    """As in all metadata, values of other kinds are left out."""
    text = f'{{"schemaVersion": {version}}}'
    made = purse().decode(message('{"purseId": "1", "cents": 5}', metadata=text))
    assert made == Paid("1", Decimal("0.05"), "EUR")


@pytest.mark.parametrize("data", [None, "[]", "null", "3", "{", "[" * 5000 + "]" * 5000])
def test_data_that_is_no_object_is_refused(data):
    """Before an upcaster gets it."""
    with pytest.raises(DecodeError, match="Cannot decode Paid at purse-1"):
        purse().decode(message(data))


def test_a_type_that_is_not_declared_cannot_be_decoded():
    """The component has no class for it."""
    with pytest.raises(UnknownTypeError, match="no class of the component purse has this type"):
        purse().decode(message("{}", "Other"))


# What is written


def test_a_version_is_that_of_one_message_alone(connection, store):
    """It is not handed on to what follows, nor to events of classes without one."""

    @dataclass(frozen=True)
    class Noted:
        purse_id: str

    component = Component("purse", entity=Purse, id="purse_id")
    component.message(Noted, Paid)
    component.handle(Pay)(
        lambda command, *_: [Noted("1"), Paid("1", Decimal(1), "EUR"), Noted("1")]
    )
    upcasting(component, Pay)
    store.write(
        [Pay("1", "a", Decimal(1), "EUR")], SENT_PAY, metadata=Metadata(properties={"a": 1})
    )
    drain(connection, component)
    found = [(m.type, m.metadata.schema_version) for m in store.read_stream("purse-1")]
    assert found == [("Noted", None), ("Paid", 3), ("Noted", None)]
    assert all(m.metadata.properties == {"a": 1} for m in store.read_stream("purse-1"))


def test_a_sender_cannot_write_another_version_than_the_class_has(store):
    """The shape is that of the class."""
    write = Write(Pay("1", "a", Decimal(1), "EUR"), SENT_PAY, metadata=Metadata(schema_version=2))
    with pytest.raises(EncodeError, match="its class is at version 3; leave schema_version out"):
        store.write_batch([write])
    store.write(write.message, SENT_PAY, metadata=Metadata(schema_version=3))
    assert [m.metadata.schema_version for m in store.read_stream(SENT_PAY)] == [3]


# Declaring


def test_a_gap_in_a_chain_is_refused():
    """At its beginning, within it and at its end."""
    component = Component("purse", entity=Purse, id="purse_id")
    component.project(Paid)(lambda entity, event: None)
    component.handle(Pay)(lambda *_: None)
    for to in (3, 1, 0, "2", True):
        with pytest.raises(DeclarationError, match="the next upcaster is the one to 2"):
            component.upcast(Paid, to=to)(to_amount)
    component.upcast(Paid, to=2)(to_amount)
    with pytest.raises(DeclarationError, match="the next upcaster is the one to 3, not to 4"):
        component.upcast(Paid, to=4)(with_currency)
    component.upcast(Paid, to=3)(with_currency)
    with pytest.raises(DeclarationError, match=r"Pay has version 3, .* lead to 1; .*upcast\(Pay"):
        component.check()
    component.upcast(Pay, to=2)(to_amount)
    with pytest.raises(DeclarationError, match="Pay has version 3, and its upcasters lead to 2"):
        component.check()
    component.upcast(Pay, to=3)(with_currency)
    component.check()


def test_an_upcaster_goes_no_further_than_the_class():
    """Else what is written today would be upcast when it is read."""
    component = purse()
    with pytest.raises(DeclarationError, match=r"the class has version 3; write `__schema_version"):
        component.upcast(Paid, to=4)(with_currency)


def test_a_class_without_a_version_needs_a_predicate():
    """Nobody could tell its former shape from that of today."""
    component = sensor()
    with pytest.raises(DeclarationError, match=r"write `__schema_version__ = 4` in the class, or"):
        component.upcast(Measured, to=4)(lambda data: data)


async def asynchronous(data: dict[str, Any]) -> dict[str, Any]:
    return data


def changes_in_place(data: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("upcaster", "problem"),
    [
        (asynchronous, "the upcaster of Paid, asynchronous, is async"),
        (lambda: {"a": 1}, "cannot be called with data"),
        (lambda data, more: {}, "cannot be called with data"),
        (changes_in_place, "is annotated to return None; return the object"),
        ("upcaster", "is not a function"),
    ],
)
def test_a_function_that_can_be_no_upcaster_is_refused(upcaster, problem):
    """When it is declared."""
    component = Component("purse", entity=Purse, id="purse_id")
    with pytest.raises(DeclarationError, match=problem):
        component.upcast(Paid, to=2)(upcaster)
    with pytest.raises(DeclarationError, match=r"the predicate of Paid, .*cannot be called with"):
        component.upcast(Paid, to=2, when=lambda: True)(to_amount)
    with pytest.raises(DeclarationError, match=r"@purse\.upcast above .*write @purse\.upcast\(W"):
        component.upcast(to_amount, to=2)


# Snapshots


def revision(connection, component):
    component.entity, component.snapshot_every = Jar, 1
    return component.snapshots(connection).revision


def test_a_snapshot_is_not_used_by_code_with_other_upcasters(connection):
    """It may hold what another upcaster made."""

    @dataclass(frozen=True)
    class Put:
        jar_id: str

    def declared(upcaster, when):
        component = Component("jar", entity=Jar, id="jar_id")
        component.project(Put)(lambda entity, event: None)
        if upcaster:
            component.upcast(Put, to=2, when=when)(upcaster)
        return revision(connection, component)

    versions = [
        (None, None),
        (lambda data: data | {"a": 1}, lambda data: True),
        (lambda data: data | {"a": 2}, lambda data: True),
        (lambda data: data | {"a": 2}, lambda data: data["a"] == 3),
    ]
    assert len({declared(*one) for one in versions}) == len(versions)
    assert declared(*versions[1]) == declared(*copy.copy(versions[1]))


def test_the_code_of_a_function_is_the_same_in_every_process():
    """Wherever it stands, and whatever the order of a set's members is."""

    def one(data):
        return data if data["kind"] in {"a", "b", "c"} else {x: x for x in data}

    body = "return data if data['kind'] in {'c', 'b', 'a'} else {x: x for x in data}"
    text = f"def one(data):\n\n    {body}\n"
    names: dict[str, Any] = {}
    exec(text, names)
    assert code_of(one) == code_of(names["one"])
    assert code_of(one) != code_of(lambda data: data)
    assert json.dumps(code_of(one)) == json.dumps(code_of(names["one"]))

    class Adds:
        def __call__(self, data):
            return one(data)

        def method(self, data):
            return data

    assert code_of(Adds()) == code_of(Adds())
    assert code_of(Adds().method) == code_of(Adds().method) != code_of(Adds())
    assert code_of(dict) == code_of(dict)
    assert code_of(None) == code_of(None)


# Tests of users


def test_a_test_of_an_upcaster_finds_what_is_not_pure():
    """What is different the second time."""

    @dataclass(frozen=True)
    class Put:
        __schema_version__ = 2
        jar_id: str
        n: int

    numbers = iter(range(9))
    component = Component("jar", id="jar_id")
    component.handle(Put)(lambda *_: None)
    component.upcast(Put, to=2)(lambda data: data | {"n": next(numbers)})
    with pytest.raises(NotDeterministicError, match="upcasters of Put made another message"):
        check_upcast(component, "Put", {"jarId": "1"})


def test_and_a_predicate_that_recognizes_the_shape_of_today():
    """It would change messages that are written now."""
    component = Component("sensor", id="sensor_id")
    component.handle(Measured)(lambda *_: None)
    component.upcast(Measured, to=2, when=lambda data: "celsius" in data)(
        lambda data: data | {"celsius": data["celsius"] + 1, "place": "roof"}
    )
    with pytest.raises(NotDeterministicError, match="that has the shape of today; let when="):
        check_upcast(component, Measured, {"sensorId": "1", "celsius": 1})


def test_a_test_can_name_the_former_name(connection):
    """And leaves the object that it was given as it is."""
    component, data = purse(was="Spent"), {"purseId": "1", "cents": 5}
    assert check_upcast(component, "Spent", data) == Paid("1", Decimal("0.05"), "EUR")
    assert data == {"purseId": "1", "cents": 5}
    with pytest.raises(DeclarationError, match="declares no message of the type Other"):
        check_upcast(component, "Other", data)


def test_a_handler_of_an_upcast_command_is_tested_as_any():
    """It gets the command as it is today."""
    handled = check_deterministic(purse(), Pay("1", "a", Decimal(1), "EUR"))
    assert handled.events == [Paid("1", Decimal(1), "EUR")]
    assert handled.context.message.metadata.schema_version == 3


# Whatever the shapes


@dataclass(frozen=True)
class Point:
    __schema_version__: ClassVar[int] = 4
    point_id: str
    x: Decimal
    y: Decimal
    label: str
    tags: list[str]


def points() -> Component:
    component = Component("point", id="point_id")
    component.handle(Point, was=["Spot", "Dot"])(lambda *_: None)
    component.upcast(Point, to=2)(lambda data: data | {"x": data["at"][0], "y": data["at"][1]})
    component.upcast(Point, to=3, when=lambda data: "label" not in data)(
        lambda data: data | {"label": data.get("name", "")}
    )
    component.upcast(Point, to=4)(lambda data: data | {"tags": data["label"].split()})
    return component


numbers = st.decimals(-1000, 1000, places=2)
labels = st.text("ab ", max_size=5)


@given(
    version=st.integers(1, 4),
    named=st.booleans(),
    says=st.booleans(),
    type_=st.sampled_from(["Point", "Spot", "Dot"]),
    x=numbers,
    y=numbers,
    label=labels,
    tags=st.lists(st.text("xyz"), max_size=3),
)
def test_every_stored_shape_decodes_to_what_the_chain_says(
    version, named, says, type_, x, y, label, tags
):
    """From any version, under any name, with and without a label where that is left open."""
    data: dict[str, Any] = {"pointId": "1", "at": [x, y]}
    if version > 1:
        data |= {"x": x, "y": y}
    has_label = version > 2 or named
    if has_label:
        data |= {"label": label}
    elif version < 3:
        data |= {"name": label}
    if version == 4:
        data |= {"tags": tags}
    stored_version = version if says or version > 1 else None
    made = check_upcast(points(), type_, data, version=stored_version)
    expected = tags if version == 4 else label.split()
    assert made == Point("1", x, y, label, expected)
