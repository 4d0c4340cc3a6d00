"""Messages as JSON."""

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, NewType

import msgspec
import pytest

from reservation import Metadata, codec, follow
from tests.controls import TIME, deposit


@dataclass(frozen=True)
class Line:
    unit_price: Decimal


@dataclass(frozen=True)
class Order:
    order_id: str
    order_lines: list[Line]
    by_name: dict[str, Line]
    gift_note: str | None = None
    shipped_at: datetime | None = None
    tags: list[str] = field(default_factory=list)


def test_keys_are_camel_case_and_amounts_are_numbers_digit_for_digit():
    """Every Message DB client expects camelCase, and money must not pass through a float."""
    text = codec.encode(deposit(amount="12345678901234567890.10"))
    assert '"amount":12345678901234567890.10' in text
    assert json.loads(text)["depositId"] == "d1"
    assert codec.decode(type(deposit()), text) == deposit(amount="12345678901234567890.10")


def test_dataclasses_within_a_message_are_converted_too():
    """Nested dataclasses follow the same rules, in lists, mappings and optional fields."""
    order = Order("1", [Line(Decimal("1.50"))], {"a_b": Line(Decimal(2))}, shipped_at=TIME)
    text = codec.encode(order)
    assert json.loads(text)["orderLines"] == [{"unitPrice": 1.5}]
    assert json.loads(text)["byName"] == {"a_b": {"unitPrice": 2}}
    assert codec.decode(Order, text) == order


def test_fields_that_the_class_does_not_have_are_passed_over():
    """Another component's newer sender must not break this one."""
    text = '{"unitPrice": 1, "somethingNew": {"x": [1]}}'
    assert codec.decode(Line, text) == Line(Decimal(1))


@pytest.mark.parametrize("text", ["[]", "null", "3", "{}", '{"unitPrice": "x"}', '{"unitPrice'])
def test_what_does_not_fit_is_refused(text):
    """Data of another shape is an error, not a message with holes."""
    with pytest.raises(msgspec.MsgspecError):
        codec.decode(Line, text)


def test_an_error_does_not_repeat_the_data():
    """What a message holds stays out of logs."""
    with pytest.raises(msgspec.MsgspecError) as caught:
        codec.decode(Line, '{"unitPrice": "secret"}')
    assert "secret" not in str(caught.value)
    assert "unitPrice" in str(caught.value)


class Color(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Paint:
    color: Color
    kind: Literal["oil", "water"] = "oil"
    shade: int = 0


@pytest.mark.parametrize(
    "text",
    [
        '{"color": "SECRET"}',
        '{"color": "red", "kind": "SECRET"}',
        '{"color": "SECRET\'s - at home"}',
        '{"color": "red", "shade": "SECRET"}',
    ],
)
def test_an_explanation_leaves_out_the_value_that_did_not_fit(text):
    """Whatever msgspec says of it."""
    with pytest.raises(msgspec.MsgspecError) as caught:
        codec.decode(Paint, text)
    explained = codec.explain(caught.value)
    assert "SECRET" not in explained
    assert "home" not in explained
    assert "$." in explained


Money = NewType("Money", float)


@dataclass(frozen=True)
class Hidden:
    money: Money = Money(0)
    by_name: Mapping[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    "hidden", [Hidden(Money(math.nan)), Hidden(by_name={"alice": [{"x": math.inf}]})]
)
def test_numbers_that_are_none_are_found_wherever_they_are(hidden):
    """And the keys of a mapping, which are data, are not told."""
    with pytest.raises(msgspec.ValidationError, match="finite number") as caught:
        codec.encode(hidden)
    assert "alice" not in str(caught.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none_are_refused_both_ways(number):
    """JSON has no form for them, and money none either."""
    with pytest.raises(msgspec.ValidationError, match=r"finite number - at `\$.orderLines"):
        codec.encode(Order("1", [Line(Decimal(number))], {}))
    with pytest.raises(msgspec.ValidationError, match="finite number"):
        codec.decode(Line, f'{{"unitPrice": "{number}"}}')


def test_metadata_leaves_out_what_is_not_there():
    """Nulls and empty property bags are not stored."""
    assert Metadata().encode() is None
    text = Metadata(correlation_stream_name="x-1", properties={"a_b": 1}).encode()
    assert json.loads(text or "") == {"correlationStreamName": "x-1", "properties": {"a_b": 1}}


def test_following_metadata_points_at_the_cause_and_hands_on_what_belongs_to_the_whole():
    """Local properties and the schema version are the message's own."""
    source = Metadata(
        correlation_stream_name="transfer-1",
        reply_stream_name="transfer-1",
        schema_version=2,
        properties={"user": 7},
        local_properties={"here": True},
    )
    assert source.follow("account:command-1", 4, 44) == Metadata(
        causation_message_stream_name="account:command-1",
        causation_message_position=4,
        causation_message_global_position=44,
        correlation_stream_name="transfer-1",
        reply_stream_name="transfer-1",
        properties={"user": 7},
    )


def test_a_message_that_follows_takes_the_attributes_of_the_same_name():
    """What the source does not have, the caller gives."""
    from bank.messages import Deposited

    deposited = follow(deposit(), Deposited, processed_time=TIME, sequence=9)
    assert (deposited.deposit_id, deposited.amount) == ("d1", Decimal("10.50"))
    with pytest.raises(TypeError, match="sequence"):
        follow(deposit(), Deposited, processed_time=TIME)
