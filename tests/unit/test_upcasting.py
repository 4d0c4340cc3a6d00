"""Shapes that change: upcasters make an object of a former shape one of the next."""

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reservation import Component, StoredMessage, Upcast
from reservation.errors import DeclarationError, DecodeError, UnknownTypeError
from reservation.messages.upcasting import code_of
from reservation.testing import NotDeterministicError, check_deterministic, check_upcast
from tests.support.controls import TIME

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
    amount: Decimal
    currency: str


@dataclass(frozen=True)
class Plain:
    """A class that says no version."""

    purse_id: str


@dataclass
class Purse:
    paid: int = 0


def to_amount(data: dict[str, Any]) -> dict[str, Any]:
    data["amount"] = Decimal(data.pop("cents")) / 100
    return data


def with_currency(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"currency": "EUR"}


def empty() -> Component:
    """Return a component of whose messages no shapes are declared."""
    component = Component("purse", entity=Purse, id="purse_id")
    component.handle(Pay, once=None)(lambda pay, *_: Paid("1", pay.amount, pay.currency))
    component.project(Paid)(lambda entity, event: None)
    return component


def purse() -> Component:
    """Return a component whose messages have former shapes, and an event that has a former name."""
    component = empty()
    component.message(Pay, upcast=[to_amount, with_currency])
    component.message(Paid, former_names="Spent", upcast=[to_amount, with_currency])
    return component


def of_one(class_: Any, **options: Any) -> Component:
    """Return a component that handles one class of messages."""
    component = Component("purse", id="purse_id")
    component.handle(class_, once=None)(lambda *_: None)
    if options:
        component.message(class_, **options)
    return component


def message(data: str | None, type_: str = "Paid", metadata: str | None = None) -> StoredMessage:
    id_ = "0190163d-8694-739b-aea5-966c26f8ad91"
    return StoredMessage(id_, "purse-1", type_, 0, 1, data, metadata, TIME)


# Predicates


@dataclass(frozen=True)
class Measured:
    sensor_id: str
    celsius: float
    place: str


def to_celsius(data: dict[str, Any]) -> dict[str, Any]:
    return {"sensorId": data["sensorId"], "celsius": (data["fahrenheit"] - 32) / Decimal("1.8")}


SHAPES = [
    Upcast(to_celsius, when=lambda data: "fahrenheit" in data),
    Upcast(lambda data: data | {"place": "unknown"}, when=lambda data: "place" not in data),
]


def sensor(*upcasters: Any) -> Component:
    """Return a component whose messages have no versions, and have upcasters."""
    component = Component("sensor", id="sensor_id")
    component.handle(Measured, once=None)(lambda *_: None)
    component.message(Measured, upcast=upcasters)
    return component


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"sensorId": "1", "fahrenheit": 212}, (100.0, "unknown")),
        ({"sensorId": "1", "celsius": 20.5}, (20.5, "unknown")),
        ({"sensorId": "1", "celsius": 20.5, "place": "roof"}, (20.5, "roof")),
    ],
)
@pytest.mark.parametrize("version", [None, 7, "of a client of its own"])
def test_a_shape_can_be_recognized_by_the_object_itself(data, expected, version):
    """Then a version means nothing, whoever wrote it."""
    made = check_upcast(sensor(*SHAPES), Measured, data, version=version)
    assert (made.celsius, made.place) == expected


def test_a_predicate_may_be_combined_with_a_version():
    """Of the messages without a version, some have the second shape already."""

    @dataclass(frozen=True)
    class Put:
        purse_id: str
        coins: int
        by: str

    def coins(data):
        return {"purseId": data["purseId"], "coins": data["count"]}

    when = Upcast(coins, when=lambda data: "count" in data)
    component = of_one(Put, version=3, upcast=[when, lambda data: data | {"by": "somebody"}])
    for name in ("count", "coins"):
        data = {"purseId": "1", name: 4}
        assert check_upcast(component, Put, data) == Put("1", 4, "somebody")
    data = {"purseId": "1", "coins": 4, "by": "me"}
    assert check_upcast(component, Put, data, version=3) == Put("1", 4, "me")


def test_numbers_keep_their_digits():
    """Those that an upcaster passes on, and those that it makes."""

    @dataclass(frozen=True)
    class Sum:
        purse_id: str
        exact: Decimal
        made: Decimal
        count: int
        rest: Any

    text = (
        '{"purseId": "1", "exact": 12345678901234567890.10, "count": 98765432109876543210,'
        ' "rest": [1.50, {"a": 1e2}]}'
    )
    component = of_one(Sum, version=2, upcast=lambda data: data | {"made": data["exact"] * 2})
    made = component.decode(message(text, "Sum"))
    assert str(made.exact) == "12345678901234567890.10"
    assert str(made.made) == "24691357802469135780.20"
    assert (made.count, made.rest) == (98765432109876543210, [1.5, {"a": 100.0}])


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
        purse_id: str
        amount: Decimal

    component = of_one(Paid, version=2, upcast=upcaster)
    with pytest.raises(DecodeError, match=problem) as caught:
        component.decode(message('{"purseId": "secret"}'))
    assert "secret" not in str(caught.value)


def test_a_predicate_that_raises_does_so_too():
    """With its own name."""

    def recognizes(data):
        return data["celsius"] > 3

    component = sensor(Upcast(lambda data: data, when=recognizes))
    with pytest.raises(DecodeError, match="recognizes, raised KeyError"):
        component.decode(message("{}", "Measured"))


@pytest.mark.parametrize("version", [4, "4", 17])
def test_a_message_of_a_newer_version_says_so(version):
    """The class is not at fault, nor is its writer."""
    text = json.dumps({"schemaVersion": version})
    said = f"written by schemaVersion {int(version)}, and this program knows 3 of .*Paid; upgrade"
    with pytest.raises(DecodeError, match=said):
        purse().decode(message('{"purseId": "1", "cents": 5}', metadata=text))


def test_an_upcaster_that_a_newer_shape_trips_is_not_at_fault():
    """Upcasters without versions see newer shapes too."""
    old = Upcast(lambda data: data, when=lambda data: data["kind"] == "old")
    component = of_one(Plain, upcast=old)
    stored = message('{"purse": 1}', type_="Plain", metadata='{"schemaVersion": "5"}')
    with pytest.raises(DecodeError, match="written by schemaVersion 5, and this program knows 2"):
        component.decode(stored)


@pytest.mark.parametrize("metadata", ['{"schemaVersion": 1}', None])
def test_data_that_does_not_fit_a_class_without_former_shapes_disagrees_with_it(metadata):
    """The class is at fault, or the data."""
    with pytest.raises(DecodeError, match="disagree; correct the class"):
        of_one(Plain).decode(message('{"walletId": "1"}', "Plain", metadata))


def test_a_message_is_decoded_as_the_class_that_is_asked_for():
    """A message of another class is refused, whatever its shape."""
    stored = message('{"purseId": "1", "cents": 5}')
    assert purse().decode(stored, Paid) == purse().decode(stored)
    with pytest.raises(DecodeError, match=r"Cannot decode .* as Plain: its type is that of Paid"):
        purse().decode(stored, Plain)


@pytest.mark.parametrize("version", [0, -1, "v2", "", 1.5, "00000000002", "²"])
def test_a_version_that_the_class_does_not_have_is_refused(version):
    """No class has it."""
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


# Declaring


def test_a_chain_that_does_not_lead_to_the_version_is_refused():
    """When it is declared, and without any upcaster when the component is checked."""
    with pytest.raises(DeclarationError, match="Paid has version 3, and its upcasters lead to 2"):
        empty().message(Paid, upcast=to_amount)
    with pytest.raises(DeclarationError, match=r"the class has version 3; declare it with version"):
        empty().message(Paid, upcast=[to_amount, with_currency, with_currency])
    with pytest.raises(DeclarationError, match=r"declare it with version=4, or"):
        sensor(*SHAPES, lambda data: data)
    component = empty()
    component.message(Paid, upcast=[to_amount, with_currency])
    with pytest.raises(
        DeclarationError, match=r"Pay has version 3, .* lead to 1; .*message\(Pay, upcast="
    ):
        component.check()
    component.message(Pay, upcast=[to_amount, with_currency])
    component.check()
    with pytest.raises(DeclarationError, match=r"upcasters of Pay are declared twice; .* one list"):
        component.message(Pay, upcast=[to_amount, with_currency])


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
        (
            Upcast(to_amount, when=lambda: True),
            "the predicate of Paid, .*cannot be called with",
        ),
    ],
)
def test_a_function_that_can_be_no_upcaster_is_refused(upcaster, problem):
    """When it is declared."""
    with pytest.raises(DeclarationError, match=problem):
        empty().message(Paid, upcast=[upcaster, with_currency])


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
    numbers = iter(range(9))
    upcaster = Upcast(lambda data: data | {"purseId": str(next(numbers))}, when=lambda data: True)
    with pytest.raises(NotDeterministicError, match="upcasters of Plain made another message"):
        check_upcast(of_one(Plain, upcast=upcaster), "Plain", {})


def test_and_a_predicate_that_recognizes_the_shape_of_today():
    """It would change messages that are written now."""
    component = sensor(
        Upcast(
            lambda data: data | {"celsius": data["celsius"] + 1, "place": "roof"},
            when=lambda data: "celsius" in data,
        )
    )
    with pytest.raises(NotDeterministicError, match="that has the current shape; let when="):
        check_upcast(component, Measured, {"sensorId": "1", "celsius": 1})


def test_a_test_can_name_the_former_name():
    """And leaves the object that it was given as it is."""
    data = {"purseId": "1", "cents": 5}
    assert check_upcast(purse(), "Spent", data) == Paid("1", Decimal("0.05"), "EUR")
    assert data == {"purseId": "1", "cents": 5}
    with pytest.raises(DeclarationError, match="declares no message of the type Other"):
        check_upcast(purse(), "Other", data)


def test_a_handler_of_an_upcast_command_is_tested_as_any():
    """It gets the command as it is today."""
    handled = check_deterministic(purse(), Pay("1", Decimal(1), "EUR"))
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
    component.handle(Point, once=None)(lambda *_: None)
    component.message(
        Point,
        former_names=["Spot", "Dot"],
        upcast=[
            lambda data: data | {"x": data["at"][0], "y": data["at"][1]},
            Upcast(
                lambda data: data | {"label": data.get("name", "")},
                when=lambda data: "label" not in data,
            ),
            lambda data: data | {"tags": data["label"].split()},
        ],
    )
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
