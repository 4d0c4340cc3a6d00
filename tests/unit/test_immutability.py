"""What cannot be changed is known by its annotations, or looked at, and is never copied."""

import copy
import random
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Any, Literal, NamedTuple
from uuid import UUID

import pytest
from immutables import Map

from reservation.handlers.copying import copied, equivalent_copy
from reservation.serialization.immutability import is_immutable, never_changes


class Kind(Enum):
    SINGLE = "single"


@dataclass(frozen=True, slots=True)
class Stay:
    nights: int
    kind: Kind = Kind.SINGLE
    before: "Stay | None" = None


class Rate(NamedTuple):
    amount: Decimal
    currency: Literal["EUR", "USD"] = "EUR"


@dataclass(frozen=True)
class Hotel:
    """An entity that cannot be changed."""

    count: int = 0
    bookings: Map[str, Stay] = field(default_factory=Map)
    rates: tuple[Rate, ...] = (Rate(Decimal(1)),)
    ids: frozenset[UUID] = frozenset()
    since: datetime | None = None


@dataclass
class Inn:
    """One that can, whose bookings cannot."""

    count: int = 0
    bookings: Map[str, Stay] = field(default_factory=Map)
    notes: list[str] = field(default_factory=list)


CHANGE = {
    Map[str, list[int]]: False,
    Map[str, Stay]: True,
    Map: False,
    tuple[int, ...]: True,
    tuple[()]: True,
    tuple[list[int], ...]: False,
    tuple: False,
    frozenset[str]: True,
    Decimal | None: True,
    Kind: True,
    Rate: True,
    Stay: True,
    list[int]: False,
    dict[str, int]: False,
    Any: False,
    object: False,
    Inn: False,
    Literal["a"]: True,
}


@pytest.mark.parametrize(("hint", "fixed"), CHANGE.items(), ids=str)
def test_annotations_say_what_cannot_be_changed(hint, fixed):
    """A frozen dataclass and a named tuple cannot be changed if none of their parts can."""
    one = dataclass(frozen=True)(type("One", (), {"__annotations__": {"part": hint}}))
    assert never_changes(one) is fixed
    assert never_changes(NamedTuple("Other", [("part", hint)])) is fixed  # type: ignore[misc]
    assert not never_changes(dataclass(type("Third", (), {"__annotations__": {"part": hint}})))


def test_an_entity_that_cannot_be_changed_is_its_own_copy():
    """Neither handlers nor checkpoints get another one."""
    for entity in (Hotel(), Stay(1), Rate(Decimal(1)), Hotel(bookings=Map(a=Stay(1))), 1, "a"):
        assert copied(entity) is entity
        assert equivalent_copy(entity) is entity


def test_parts_that_cannot_be_changed_are_shared():
    """Of an entity that can be changed, only what can be changed is copied."""
    inn = Inn(bookings=Map(a=Stay(1)), notes=["a"])
    for made in (copied(inn), equivalent_copy(inn)):
        assert made == inn
        assert made is not inn
        assert made.bookings is inn.bookings
        assert made.notes is not inn.notes


@dataclass(frozen=True)
class WithIndex:
    parts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", {})


@dataclass(frozen=True)
class WithCache:
    parts: tuple[int, ...] = ()

    @cached_property
    def found(self) -> list[int]:
        return list(self.parts)


@dataclass(frozen=True)
class Loose:
    parts: Any = ()


class Derived(Hotel):
    """Has attributes that can be set."""


def test_what_a_class_does_not_say_is_looked_at():
    """A wrong annotation, a further attribute, a cached value and a derived class are copied."""
    wrong: Any = Hotel(rates=[Rate(Decimal(1))])  # type: ignore[arg-type]
    derived: Any = Derived()
    derived.notes = ["a"]
    with_cache = WithCache((1,))
    with_cache.found.append(2)
    for entity, part in (
        (wrong, "rates"),
        (WithIndex(), "index"),
        (with_cache, "found"),
        (derived, "notes"),
        (Loose([1]), "parts"),
        (Loose(([1],)), "parts"),
        (Loose(Map(a=[1])), "parts"),
        (Loose(Rate([1])), "parts"),  # type: ignore[arg-type]
    ):
        assert not is_immutable(entity)
        made = copied(entity)
        assert repr(made) == repr(entity)
        assert getattr(made, part) is not getattr(entity, part)
    for whole in (Loose((1, "a")), Loose(Map(a=(1,))), Loose(Rate(Decimal(1)))):
        assert copied(whole) is whole  # none of its parts can be changed


def parts_of(chance: random.Random, depth: int = 3) -> Any:
    """Return a value of random parts, some of which can be changed."""
    if depth == 0 or chance.random() < 0.2:
        return chance.choice([1, "a", None, Decimal(1), Kind.SINGLE])
    part = [parts_of(chance, depth - 1) for _ in range(chance.randrange(3))]
    return chance.choice(
        [
            lambda: tuple(part),
            lambda: list(part),
            lambda: dict(enumerate(part)),
            lambda: Map(enumerate(part)),
            lambda: Loose(tuple(part)),
            lambda: Rate(part),  # type: ignore[arg-type]
            lambda: Hotel(rates=part),  # type: ignore[arg-type]
            lambda: Inn(notes=part),
        ]
    )()


def change_all(value: Any) -> None:
    """Change whatever can be changed in a value, as a handler may."""
    if isinstance(value, list):
        for one in value:
            change_all(one)
        value.append("changed")
    elif isinstance(value, dict):
        for one in value.values():
            change_all(one)
        value["changed"] = 1
    elif isinstance(value, tuple):
        for one in value:
            change_all(one)
    elif isinstance(value, Map):
        for one in value.values():
            change_all(one)
    elif isinstance(value, Loose):
        change_all(value.parts)
    elif isinstance(value, Hotel):
        change_all(value.rates)
    elif isinstance(value, Inn):
        change_all(value.notes)
        value.notes = ["changed"]
        value.count += 1


def test_what_a_handler_changes_leaves_no_trace():
    """Whatever is changed in a copy, the original is what a deep copy of it was before."""
    for seed in range(500):
        parts = [parts_of(random.Random(seed)) for _ in range(2)]
        for entity in (Inn(notes=parts[0]), Loose(parts[1])):
            before = repr(copy.deepcopy(entity))
            change_all(copied(entity))
            assert repr(entity) == before, seed
