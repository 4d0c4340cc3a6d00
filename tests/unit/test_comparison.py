"""The content of two messages, compared by value and without what may differ."""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest

from reservation.messages.comparison import differing_fields, same_content


@dataclass
class Line:
    article: str
    pieces: int = 1


@dataclass
class Order:
    lines: list[Line] = field(default_factory=list)
    by_name: dict[str, Any] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)
    total: Decimal = Decimal(0)
    when: str = ""
    note: Any = None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Order(), Order(), True),
        (Order([Line("a")]), Order([Line("a", 1)]), True),
        (Order([Line("a")]), Order([Line("a", 2)]), False),
        (Order([Line("a"), Line("b")]), Order([Line("b"), Line("a")]), False),
        (Order([Line("a")]), Order([Line("a"), Line("a")]), False),
        (Order(by_name={"a": 1, "b": 2}), Order(by_name={"b": 2, "a": 1}), True),
        (Order(by_name={"a": 1}), Order(by_name={"b": 1}), False),
        (Order(by_name={"a": 1}), Order(by_name={"a": 1, "b": None}), False),
        (Order(tags={"a", "b"}), Order(tags={"b", "a"}), True),
        (Order(tags={"a"}), Order(tags={"b"}), False),
        (Order(total=Decimal("1.0")), Order(total=Decimal("1.00")), True),
        (Order(note=1), Order(note=1.0), True),
        (Order(note=1), Order(note=True), False),
        (Order(note=False), Order(note=0), False),
        (Order(note=True), Order(note=True), True),
        (Order(note="1"), Order(note=1), False),
        (Order(note=None), Order(note=0), False),
        (Order(note=[1, "a"]), Order(note=[1.0, "a"]), True),
        (Order(when="then"), Order(when="now"), True),
        (Line("a"), Order(), False),
        ("a", "a", False),
    ],
)
def test_contents_are_compared_field_by_field(one, other, same):
    """By value, and without what may differ."""
    assert same_content(one, other, ["when"]) is same
    assert same_content(other, one, ["when"]) is same


def test_the_fields_that_differ_are_named():
    """In the order of the class, without what may differ."""
    one, other = Order([Line("a")], total=Decimal(1), when="now"), Order(note=1)
    assert [*differing_fields(one, other, ["when"])] == ["lines", "total", "note"]
    assert [*differing_fields(one, one)] == []
