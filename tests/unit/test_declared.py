"""What declarations amount to: how keys name streams, and whose name a type is."""

import json
import tracemalloc
import uuid
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal, NewType

import pytest

from reservation import Component, Key, Upcast
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.errors import DeclarationError, IdempotenceKeyError, StreamNameError
from reservation.idempotence.server_keys import server_rules
from reservation.idempotence.strategy import Strategy
from reservation.strategies import (
    MessageIdInEvents,
    PositionInEvents,
    Processed,
    Revisions,
    StateBased,
)
from spark_jobs.common.declaration import Declaration


@dataclass(frozen=True)
class Pay:
    shop_id: str
    pay_id: Any
    time: str = ""


@dataclass(frozen=True)
class Refund:
    shop_id: str
    pay_id: str


@dataclass(frozen=True)
class Paid:
    shop_id: str


def shop() -> Component:
    return Component("shop", id="shop_id")


def nothing(command: Any, entity: Any, context: Any) -> None: ...


def reserve(component: Component, command: type, key: Any) -> None:
    component.handle(command, key=key)(nothing)


def named(key: Any, command: Pay) -> str:
    """Return the name of the stream that a command is reserved in."""
    component = shop()
    reserve(component, Pay, key)
    return declarations(component).own["Pay"].reservation.stream_name(command)


def alone(fields: Any) -> Key:
    """Return a key that names streams by itself, without the entity before it."""
    return Key(fields, per=None)


# The name of a reservation's stream


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("pay_id", "shopTransaction-1+a"),
        (["pay_id", "time"], "shopTransaction-1+a+t"),
        (lambda command: command.pay_id.upper(), "shopTransaction-1+A"),
        (lambda command: (command.pay_id, 7), "shopTransaction-1+a+7"),
        (alone("pay_id"), "shopTransaction-a"),
        (alone(("time", "time")), "shopTransaction-t+t"),
        (Key("pay_id", per="time", into="keys"), "keys-t+a"),
    ],
)
def test_a_key_says_how_its_stream_is_named(key, name):
    """By fields or a function, behind the entity's id, another field or nothing."""
    assert named(key, Pay("1", "a", "t")) == name


@pytest.mark.parametrize(
    ("number", "text"),
    [(12, "12")]
    + [(Decimal(one), text) for one, text in (("1.50", "1.5"), ("-2.0", "-2"), ("15E1", "150"))]
    + [(Decimal(one), text) for one, text in (("1E-3", "0.001"), ("-0.0", "0"))]
    + [(Decimal(zero), "0") for zero in ("0E5", "0E-5", "0E999999999", "0E-999999999")]
    + [(Decimal(f"1.{'0' * 5000}"), "1")],
)
def test_equal_numbers_are_the_same_key(number, text):
    """However they are written."""
    assert named(alone("pay_id"), Pay("1", number)) == f"shopTransaction-{text}"


@pytest.mark.parametrize("number", ["1E999999999", "1E-999999999", "-1.5E-999999999", "1E-5000"])
def test_a_number_whose_digits_no_name_takes_is_refused_without_writing_them_out(number):
    """As a key and as the id of an entity."""
    pay = Pay("1", Decimal(number))
    tracemalloc.start()
    try:
        with pytest.raises(IdempotenceKeyError):
            named(alone("pay_id"), pay)
        with pytest.raises(StreamNameError):
            Component("payment", id="pay_id").entity_stream(pay)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("key", [None, "", True, Decimal("NaN"), 1.5, "a\nb"])
def test_a_command_without_a_usable_key_is_refused(key):
    """It cannot be distinguished from others."""
    with pytest.raises(IdempotenceKeyError):
        named(alone("pay_id"), Pay("1", key))


def test_parts_that_could_be_mistaken_for_others_are_refused():
    """The key b+c of the entity a, and the key c of an entity a+b, would share a stream."""
    assert named("pay_id", Pay("a", "b+c")) == "shopTransaction-a+b+c"
    with pytest.raises(IdempotenceKeyError, match=r"\+"):
        named("pay_id", Pay("a+b", "c"))


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (None, "returned is empty; an"),
        ((), "the key function returned nothing"),
        (("a", None), "part 1 of what the key function returned is empty; an"),
        (1.5, "is a float; an"),
    ],
)
def test_a_key_function_that_returns_no_key_is_refused(returned, problem):
    """It returns a text, a whole number or several of them."""
    with pytest.raises(IdempotenceKeyError, match=problem):
        named(lambda _: returned, Pay("1", "a"))


class Kind(Enum):
    ONE = 1


class Word(StrEnum):
    A = "a"


Number = NewType("Number", int)


def keyed(hint: Any) -> Any:
    @dataclass
    class Keyed:
        shop_id: str
        key: hint

    return Keyed


@pytest.mark.parametrize(
    "hint",
    [float, bool, datetime, bytes, list[str], dict[str, str], None, Paid, float | None],
)
def test_a_key_of_a_type_that_can_be_none_is_refused(hint):
    """A key, a leading field or an entity's id whose type allows None is refused."""
    problem = (
        r"Keyed.key is a .* cannot be part of a key; a key is a string, a whole number, a UUID"
    )
    for options in (
        {"key": "key"},
        {"key": Key("shop_id", per="key")},
        {"category": "bill", "id": "key"},
    ):
        with pytest.raises(DeclarationError, match=problem):
            shop().handle(keyed(hint), **options)(nothing)
    with pytest.raises(DeclarationError, match=problem):
        Component("shop", id="key").handle(keyed(hint), once=None)(nothing)


@pytest.mark.parametrize(
    "hint",
    [
        str,
        int,
        uuid.UUID,
        date,
        Decimal,
        Kind,
        Word,
        Number,
        str | None,
        Literal["a", 1],
        Annotated[str, 1],
        Any,
        float | str,
    ],
)
def test_a_key_of_any_other_type_is_accepted(hint):
    """A key whose type does not decide is accepted; the value decides."""
    reserve(shop(), keyed(hint), Key("key", into="payment", per="key"))


# The category of reservations


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("shop_id", "shop_id"),
        (Key("shop_id", into="x"), Key("shop_id", into="x")),
        (
            Key("shop_id", into="x", per="shop_id"),
            Key(["shop_id", "shop_id"], into="x", per=None, shared=True),
        ),
        (Key("shop_id", into="x", shared=True), Key("shop_id", into="x")),
    ],
    ids=["default category", "own category", "led by the entity", "only one says shared"],
)
def test_two_types_do_not_take_each_others_keys(first, second):
    """Commands of two types with the same fields as their key are refused, with the ways out."""
    component = shop()
    reserve(component, Pay, first)
    problem = (
        r"^shop: Pay and Refund are both reserved in .* by shop_id.*, so a Refund with the .*"
        r"category of its own, .*key function .*shared=True if no two commands ever have the same"
    )
    with pytest.raises(DeclarationError, match=problem):
        reserve(component, Refund, second)


@pytest.mark.parametrize("into", ["shop", "shop:command", "bill"])
def test_a_reservation_category_holds_nothing_else(into):
    """A category of commands, events or subscriptions is refused, whichever comes first."""
    component = shop()
    component.handle(Paid, category="bill")(nothing)
    problem = f"'{into}' is in use for .*; name another with Key\\(…, into=…\\)"
    with pytest.raises(DeclarationError, match=problem):
        reserve(component, Pay, Key("pay_id", into=into))
    reserve(component, Pay, Key("pay_id", into="x"))
    problem = "Paid cannot be read from 'x', .* has its reservations; handle them with @shop.handle"
    with pytest.raises(DeclarationError, match=problem):
        component.handle(Paid, category="x")


@pytest.mark.parametrize(
    ("pay", "refund", "categories"),
    [
        (Key("pay_id", into="x"), Key("shop_id", into="x"), ["x"]),
        (Key("pay_id", into="x"), Key("pay_id", into="y"), ["x", "y"]),
        ("pay_id", lambda command: f"refund {command.pay_id}", ["shopTransaction"]),
        (*[Key("pay_id", into="x", shared=True)] * 2, ["x"]),
        (Key("pay_id", per=None), "shop_id", ["shopTransaction"]),
    ],
    ids=["other fields", "other categories", "a function", "shared", "led by nothing"],
)
def test_two_types_may_be_reserved_side_by_side(pay, refund, categories):
    """Where their keys cannot be the same; by default in `<name>Transaction`."""
    component = shop()
    reserve(component, Pay, pay)
    reserve(component, Refund, refund)
    assert declarations(component).reservation_categories == categories


# Names and shapes


@dataclass
class Buy:
    shop_id: str
    buy_id: str


@pytest.mark.parametrize("before", [True, False])
def test_names_and_shapes_are_declared_before_or_after_the_handler(before):
    """They hold for all names, and the server takes no key of what is upcast."""
    component = shop()

    def to_2(data):
        return data | {"buyId": data["id"]}

    def declare():
        upcasters = [to_2, Upcast(to_2, when=lambda data: "id" in data)]
        component.message(Buy, former_names="Bought", version=3, upcast=upcasters)

    if before:
        declare()
    reserve(component, Buy, "buy_id")
    if not before:
        declare()
    table = declarations(component)
    roles = {name: one.role for name, one in table.own.records.items()}
    assert roles == dict.fromkeys(("Buy", "Bought"), Role.RESERVE)
    assert table.types.written(Buy).version == 3
    assert table.server_keys == {}


def test_a_version_and_the_upcasters_to_it_are_one_declaration():
    """What contradicts the class, or is for several classes, is refused."""

    @dataclass
    class Buy:
        __schema_version__ = 2
        shop_id: str

    with pytest.raises(DeclarationError, match="cannot have version 3 and version 2"):
        shop().message(Buy, version=3)
    with pytest.raises(DeclarationError, match="its upcasters lead to 1"):
        shop().message(Buy, version=2)
    with pytest.raises(DeclarationError, match="is for one class"):
        shop().message(Buy, Paid, former_names="Bought")
    for version in (0, True, "2"):
        with pytest.raises(DeclarationError, match="a version is a whole number from 1"):
            shop().message(Paid, version=version)


@pytest.mark.parametrize("before", [True, False])
def test_names_hold_in_every_category_where_a_class_is_handled(before):
    """Whichever was declared first."""
    component = shop()
    if before:
        component.message(Paid, former_names="Settled")
    for category in ("bill", "till"):
        component.handle(Paid, category=category)(nothing)
    if not before:
        component.message(Paid, former_names="Settled")
    for category in ("bill", "till"):
        assert set(declarations(component).of(category).handled) == {"Paid", "Settled"}


@dataclass
class PaidOfOthers:
    shop_id: str
    cents: int


# A class of another category has the name of an own one.
PaidOfOthers.__name__ = PaidOfOthers.__qualname__ = "Paid"


def dated(data):
    return data | {"cents": 100}


@pytest.mark.parametrize("own", ["first", "between", "last"])
def test_names_of_a_class_of_others_leave_its_name_to_an_own_class(own):
    """Its names and shapes wait for its category, whatever is declared first."""
    component = shop()
    if own == "first":
        component.message(Paid)
    component.message(PaidOfOthers, former_names="Settled", version=2, upcast=dated)
    if own == "between":
        component.message(Paid)
    component.handle(PaidOfOthers, category="bill")(nothing)
    if own == "last":
        component.message(Paid)
    component.check()
    table = declarations(component)
    assert table.own["Paid"].message is Paid
    assert table.own["Settled"].role is Role.UNDECLARED
    assert not table.types.is_upcast("Paid")
    assert set(table.of("bill").handled) == {"Paid", "Settled"}
    assert table.of("bill").types.is_upcast("Settled")


def test_a_class_of_others_alone_is_no_own_event():
    """Only names and shapes were declared of it when it was not known yet."""
    component = shop()
    component.message(PaidOfOthers, former_names="Settled")
    assert declarations(component).own["Settled"].role is Role.EVENT
    component.handle(PaidOfOthers, category="bill")(nothing)
    assert not declarations(component).own.records
    component.message(PaidOfOthers)
    assert set(declarations(component).own.records) == {"Paid", "Settled"}


@pytest.mark.parametrize("own_first", [True, False])
def test_a_second_class_of_a_name_is_refused_where_nothing_handles_it(own_first):
    """When the component is checked, because its category may be declared last."""
    component = shop()
    if own_first:
        component.message(Paid)
    component.message(PaidOfOthers, former_names="Settled")
    if not own_first:
        component.message(Paid)
    reserve(component, Pay, "pay_id")
    with pytest.raises(DeclarationError, match=r"no handler takes it, while .*Paid has its name"):
        component.check()


# Former names


@dataclass(frozen=True)
class Settled:
    shop_id: str


def naming(class_: type = Paid, **names: Any) -> Component:
    """Return a component that gives names to a class of events."""
    component = shop()
    component.message(class_, **names)
    return component


@pytest.mark.parametrize(
    ("class_", "names"),
    [
        (Settled, {}),
        (Refund, {"former_names": "Settled"}),
        (Refund, {"stored_as": "Settled"}),
        (Refund, {"former_names": "Paid"}),
    ],
)
def test_two_classes_that_claim_one_name_are_refused(class_, names):
    """Whichever of them has it, had it or is to be stored under it."""
    with pytest.raises(DeclarationError, match=r"(Settled|Paid) is the type of .*Paid and of "):
        naming(former_names="Settled").message(class_, **names)


def test_a_class_is_written_under_one_name():
    """Which declarations of it do not contradict."""
    component = naming(stored_as="Settled")
    component.message(Paid, former_names="Done", stored_as="Settled")
    for name in ("Done", "Paid"):
        problem = f"cannot be stored as {name} and as Settled"
        with pytest.raises(DeclarationError, match=problem):
            component.message(Paid, stored_as=name)


@pytest.mark.parametrize(
    "names", [{"former_names": "Add"}, {"stored_as": "Add"}, {"former_names": ["a", "b"]}]
)
def test_a_name_is_given_to_one_class(names):
    """Of several it would not be clear whose it is."""
    with pytest.raises(DeclarationError, match=r"call shop\.message for each class"):
        shop().message(Paid, Refund, **names)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (
            {"former_names": "Paid"},
            "former_names= has Paid, which is the name that the class has now",
        ),
        (
            {"former_names": [Refund]},
            "take the names of types as strings, such as former_names='Former', not Refund",
        ),
        (
            {"former_names": Refund},
            "take the names of types as strings, such as former_names='Former', not Refund",
        ),
        ({"former_names": 3}, "not 3"),
        ({"former_names": ""}, "take the names"),
        ({"former_names": [""]}, "take the names of types as strings"),
        ({"stored_as": ""}, "take the names of types as strings"),
        ({"stored_as": Refund}, "not Refund"),
    ],
)
def test_a_former_name_is_another_text(names, problem):
    """The class's own may be named as the one to write."""
    naming(stored_as="Paid")
    with pytest.raises(DeclarationError, match=problem):
        naming(**names)


def test_a_name_counts_wherever_it_is_declared():
    """Before the command is handled, and after it, for consumers, the server and Spark."""

    @dataclass
    class Buy:
        shop_id: str
        buy_id: str

    component = shop()
    component.message(Buy, former_names="Order")
    component.handle(Buy, key="buy_id")(nothing)
    component.message(Buy, former_names="Purchase")
    names = {"Buy", "Order", "Purchase"}
    table = declarations(component).own.handled
    assert set(table) == names
    assert all(one.reservation and one.handler for one in table.values())
    rules = json.loads(server_rules(declarations(component).server_keys))
    assert {one["type"] for one in rules} == names
    declared = Declaration.of(component)
    assert (set(declared.keys), declared.by_function) == (names, [])


# Strategies


class OfUser(Strategy):
    """A strategy of a user's own, which defines `begin` and inherits the rest."""

    def begin(self, connection, consumer, category, batch):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("strategy", "properties", "categories"),
    [
        (OfUser(), set(), []),
        (Processed(), set(), []),
        (Revisions(), set(), []),
        (MessageIdInEvents(), {"leaves_trace"}, []),
        (PositionInEvents(), {"leaves_trace", "needs_order"}, []),
        (StateBased(), {"keeps_state"}, ["purse:state"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_strategy_has_the_properties_by_which_others_are_distinguished(
    strategy, properties, categories
):
    """Consumers and Spark ask for these, never for a class; one writes further categories."""
    names = ("keeps_state", "leaves_trace", "needs_order")
    assert {name for name in names if getattr(strategy, name)} == properties
    assert list(strategy.categories("purse")) == categories
    component = Component("shop", entity=Held, id="shop_id")
    component.handle(Versioned, once=strategy)(nothing)
    assert declarations(component).own.strategies == {"Versioned": strategy}
    assert ("Versioned" in declarations(component).own.state_based) is bool(categories)


@dataclass
class Held:
    """An entity."""


@dataclass(frozen=True)
class Versioned:
    shop_id: str
    revision: int
    source: str


def test_what_is_declared_of_a_strategy_must_be_there():
    """A field that it reads, and all that a strategy is."""

    class Alike:
        def declare(self, component, command, entity): ...

        def begin(self, connection, consumer, category, batch): ...

    with pytest.raises(DeclarationError, match="no field 'revision'"):
        shop().handle(Pay, once=Revisions())
    with pytest.raises(DeclarationError, match="once= of Pay is a Alike; give it a strategy"):
        shop().handle(Pay, once=Alike())
    component = Component("shop", entity=Held, id="shop_id")
    component.handle(Pay, once=StateBased(window=timedelta(1)))(nothing)
    assert declarations(component).state_window == timedelta(1)
