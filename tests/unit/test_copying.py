"""Copies of entities: equal, of the same classes, and sharing nothing that can be changed."""

import copy
import enum
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservation.handlers.copying import copied, equivalent_copy


class Kind(enum.Enum):
    ONE = "one"


@dataclass
class Line:
    name: str
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Price:
    amount: Decimal
    notes: Any = None


@dataclass(slots=True)
class Base:
    first: Any


@dataclass(slots=True)
class Slotted(Base):
    second: Any


class Unset:
    __slots__ = ("there", "unset")

    def __init__(self) -> None:
        self.there = [1]


class Mixed(Base):
    """Has slots and attributes besides."""


class Own(list[Any]):
    """Is a list, and has attributes."""


class Counted:
    def __init__(self) -> None:
        self.parts = [1]

    def __deepcopy__(self, memo: Any) -> "Counted":
        return self


@dataclass
class Holder:
    value: Any


VALUES: list[Any] = [
    1,
    "a",
    None,
    Kind.ONE,
    int,
    [1, "a", [2], {"a": [3]}],
    (1, "a"),
    (1, [2]),
    {"a": {"b": [1]}},
    {Kind.ONE: [1], ("a", 1): [2]},
    {1, 2},
    {(1, "a"), Kind.ONE},
    frozenset([1, (2, "a")]),
    defaultdict(list, {"a": [1]}),
    OrderedDict(b=[1], a=2),
    Counter(a=2),
    deque([[1], 2], maxlen=2),
    Line("a", ["b"]),
    [Line("a"), Line("b", ["c"])],
    Price(Decimal(1)),
    Price(Decimal(1), [1]),
    Slotted([1], {"a": [2]}),
    bytearray(b"abc"),
    range(3),
]


def mutable_parts(value: Any, seen: dict[int, Any]) -> dict[int, Any]:
    """Return the mutable parts of a value by their ids."""
    if isinstance(value, type | enum.Enum) or id(value) in seen:
        return seen
    if isinstance(value, list | dict | set | deque | bytearray) or hasattr(value, "__dict__"):
        seen[id(value)] = value
    if isinstance(value, dict):
        for item in [*value, *value.values()]:
            mutable_parts(item, seen)
    elif isinstance(value, list | set | deque | tuple | frozenset):
        for item in value:
            mutable_parts(item, seen)
    for name in [*getattr(value, "__dict__", ()), *getattr(value, "__dataclass_fields__", ())]:
        mutable_parts(getattr(value, name), seen)
    return seen


def check(value: Any) -> None:
    entity = Holder(value)
    made = copied(entity)
    assert made == entity
    assert repr(made) == repr(copy.deepcopy(entity))
    assert not mutable_parts(made, {}).keys() & mutable_parts(entity, {}).keys()


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_copy_shares_nothing_that_can_be_changed(value):
    """A copy equals deepcopy's and shares nothing mutable with the original."""
    check(value)


SINGLE = st.integers() | st.text(max_size=3) | st.sampled_from(Kind)


def collections_of(inner):
    return (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.tuples(inner, inner)
    )


@settings(max_examples=40)
@given(
    value=st.recursive(
        SINGLE,
        lambda inner: (
            collections_of(inner)
            | st.builds(Holder, inner)
            | st.builds(Slotted, inner, inner)
            | st.builds(Price, st.just(Decimal(1)), inner)
        ),
    )
)
def test_nested_containers_and_dataclasses_are_copied(value):
    """Containers and dataclasses nested in each other are copied in full."""
    check(value)


@given(value=st.recursive(SINGLE, collections_of))
def test_plain_values_and_collections_of_them_have_equivalent_copies(value):
    """An entity that holds nothing else is equal to its copy, and shares nothing with it."""
    for entity in (Holder(value), Slotted(value, value)):
        made = equivalent_copy(entity)
        assert made == copied(entity) == entity
        assert made is not entity


def test_what_may_look_at_the_original_or_be_compared_by_identity_has_none():
    """Functions, factories, sentinels, instances within and classes that copy themselves."""

    class Own(Holder):
        def __deepcopy__(self, memo):
            return self

    cycle = []
    cycle.append(cycle)
    parts = [object(), lambda: 1, defaultdict(int), Holder(1), cycle, Counter()]
    assert [equivalent_copy(Holder([{"a": part}])) for part in parts] == [None] * len(parts)
    assert equivalent_copy(Own(1)) is None


def test_a_slot_that_a_class_declares_again_may_be_unset_in_its_base():
    """A slot that stands in a class and in its base has two places, of which one has no value."""

    class Again(Base):
        __slots__ = tuple(Base.__slots__)

    entity = Again([1])
    for made in (copied(entity), equivalent_copy(entity)):
        assert [getattr(made, name) for name in Base.__slots__] == [[1]]


def test_an_object_held_twice_is_one_object_in_the_copy():
    """An object that is held twice is one object in the copy too."""
    line = Line("a")
    made = copied(Holder({"all": [line, line], "last": line, "pair": (line, [line])}))
    ids = {*map(id, made.value["all"]), id(made.value["last"])}
    ids |= {id(made.value["pair"][0]), id(made.value["pair"][1][0])}
    assert len(ids) == 1
    assert line is not made.value["last"]


def test_cycles_are_copied_as_cycles():
    """Cycles through lists, dicts, tuples and attributes are copied as cycles."""
    entity = Holder([])
    entity.value.extend([entity, {"a": entity}, (entity.value,)])
    made = copied(entity)
    assert made.value[0] is made
    assert made.value[1]["a"] is made
    assert made.value[2][0] is made.value
    assert made is not entity


def test_attributes_of_every_kind_are_copied():
    """Attributes that are no fields, slots and unset values are copied."""
    entity: Any = Holder(1)
    entity.other = [1]
    assert (copied(entity).other, copied(entity).other is entity.other) == ([1], False)
    unset = copied(Unset())
    assert (unset.there, hasattr(unset, "unset")) == ([1], False)
    mixed: Any = Mixed([1])
    mixed.other = [2]
    made = copied(mixed)
    assert (made.first, made.other) == ([1], [2])
    assert made.first is not mixed.first
    own: Any = Own([1])
    own.other = [2]
    made = copied(Holder(own)).value
    assert (type(made), made, made.other) == (Own, [1], [2])
    assert made.other is not own.other


if TYPE_CHECKING:
    from tests.apps.bank import Unknown


@dataclass(frozen=True, slots=True)
class OfUnknown:
    """What is in its field is annotated with a class that only a type checker sees."""

    parts: "list[Unknown]"


class NamedUnknown(NamedTuple):
    parts: "list[Unknown]"


@dataclass(frozen=True)
class Bag(dict[str, int]):
    """Is a dictionary besides."""

    name: str


@dataclass(frozen=True)
class Around:
    held: OfUnknown | NamedUnknown | Bag


@pytest.mark.parametrize("held", [OfUnknown([]), NamedUnknown([]), Bag("a")], ids=repr)
def test_frozen_classes_that_may_change_are_copied(held):
    """Also within another; their fields are no proof that they cannot change."""
    assert copied(held) is not held
    assert copied(Around(held)).held is not held


def test_a_class_can_define_how_it_is_copied():
    """A class that defines `__deepcopy__` is copied by it."""
    counted = Counted()
    assert copied(Holder(counted)).value is counted


def test_a_value_that_cannot_be_copied_is_refused():
    """A value that cannot be copied is refused rather than shared."""
    with pytest.raises(TypeError):
        copied(Holder(threading.Lock()))
