"""What PostgreSQL's jsonb does not take, and the field that is named for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec
import pytest

from reservation.serialization import json_limits
from reservation.serialization.json_limits import ALL, DECODED, HIDDEN, MAX_DEPTH, check_text


class Grade(Enum):
    GOOD = "good"
    ODD = "a\0b"


@dataclass
class Line:
    unit_price: Decimal = Decimal(1)


@dataclass
class Order:
    memo: str = ""
    total: float = 0.0
    count: int = 0
    price: Decimal = Decimal(0)
    time: datetime | None = None
    order_lines: list[Line] = field(default_factory=list)
    by_name: Mapping[str, Decimal] = field(default_factory=dict)
    payload: Any = None


def found(message, look=ALL):
    error = json_limits.problem(message, look)
    return None if error is None else str(error)


GOOD = [
    Order(),
    Order(memo="é\U0001f600", total=1e300, count=10**4298, price=Decimal("1e131071")),
    Order(time=datetime(2026, 1, 2, tzinfo=UTC), by_name={"a": Decimal("0." + "1" * 16383)}),
    Order(payload=[{"a": (1, {2}, Grade.GOOD)}, None]),
]


@pytest.mark.parametrize("message", GOOD)
def test_what_jsonb_takes_is_no_problem(message):
    """Data that jsonb accepts is no problem, up to the limits."""
    assert found(message) is None


def nested(levels):
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


BAD = {
    "NUL": (Order(memo="a\0b"), "text without NUL", "$.memo"),
    "half a pair": (Order(memo="\ud800"), "half of a surrogate pair", "$.memo"),
    "infinite": (Order(total=float("inf")), "a finite number", "$.total"),
    "not a number": (Order(price=Decimal("NaN")), "a finite number", "$.price"),
    "long integer": (Order(count=10**4299), "an integer of at most 4299 digits", "$.count"),
    "digits before": (Order(price=Decimal("1e131072")), "131072 digits before", "$.price"),
    "digits after": (Order(price=Decimal("1e-16384")), "16383 after it", "$.price"),
    "without a type": (Order(payload=Decimal("1e308")), "no type says", "$.payload"),
    "within a list": (
        Order(order_lines=[Line(), Line(Decimal("Infinity"))]),
        "finite",
        "$.orderLines[...].unitPrice",
    ),
    "value of a mapping": (Order(by_name={"a": Decimal("NaN")}), "finite", "$.byName[...]"),
    "key of a mapping": (Order(by_name={"a\0": Decimal(1)}), "a key that is text", "$.byName"),
    "a decimal as key": (Order(payload={Decimal(1): 1}), "a text or an integer", "$.payload"),
    "a member of an enum": (Order(payload=Grade.ODD), "without NUL", "$.payload"),
    "odd time zone": (
        Order(time=datetime(1890, 1, 1, tzinfo=timezone(timedelta(seconds=1172)))),
        "whole minutes",
        "$.time",
    ),
    "deep": (Order(payload=nested(MAX_DEPTH)), f"at most {MAX_DEPTH} levels", "$.payload[...]"),
}


@pytest.mark.parametrize(("message", "expected", "path"), BAD.values(), ids=BAD)
def test_what_it_does_not_take_is_named(message, expected, path):
    """A problem is named by what was expected and its path, never by the value."""
    problem = found(message)
    assert expected in problem
    assert problem.endswith(f"at `{path}`")


def test_only_the_first_problem_is_named():
    """Only the first problem is named, in the order of the fields."""
    assert found(Order(memo="\0", total=float("nan"))).endswith("`$.memo`")


@pytest.mark.parametrize(("look", "sees"), [(ALL, True), (HIDDEN, False), (DECODED, True)])
def test_each_check_covers_its_own_fields(look, sees):
    """Each check looks only at the fields that it covers."""
    assert (found(Order(price=Decimal("NaN")), look) is not None) is sees


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (r'{"memo":"a\u0000b"}', Order(memo="a\0b")),
        ('{"price":1E+131072}', Order(price=Decimal("1e131072"))),
        ('{"count":' + "9" * 4300 + "}", Order(count=10**4300 - 1)),
        ('{"payload":' + "[" * 500 + "]" * 500 + "}", Order(payload=nested(500))),
    ],
    ids=["NUL", "exponent", "long", "deep"],
)
def test_fields_are_searched_only_if_the_text_gives_reason(text, message):
    """Fields are searched only if the encoded text gives reason to."""
    with pytest.raises(msgspec.ValidationError):
        check_text(message, text, len(text), 1 << 20)


@pytest.mark.parametrize(
    "text",
    [
        '{"memo":"E+ NaN Infinity"}',
        r'{"memo":"a\\u0000b"}',
        '{"memo":"' + "[" * 600 + '"}',
        '{"payload":[' + ",".join(["[]"] * 600) + "]}",
    ],
    ids=["words", "escaped backslash", "brackets in a text", "wide"],
)
def test_a_text_that_only_looks_wrong_is_accepted(text):
    """Text that looks like a number, a NUL or a bracket is accepted."""
    check_text(Order(memo="harmless"), text, len(text), 1 << 20)


def test_a_text_that_is_too_long_names_its_largest_field():
    """The error for a text that is too long names its largest field and both lengths."""
    message = Order(memo="x" * 100, payload=["y" * 50])
    with pytest.raises(msgspec.ValidationError) as caught:
        check_text(message, "irrelevant", 150, 149)
    assert "at most 149 bytes of JSON, got 150; the largest field has 102" in str(caught.value)
    assert str(caught.value).endswith("`$.memo`")
