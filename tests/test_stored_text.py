"""The client knows the text that a message will be decoded from before it is stored."""

import math
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservation.serialization.stored_text import as_jsonb
from reservation.serialization.struct_types import reads_the_same

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, including the order of keys and the sign of zero."""
    if isinstance(one, dict):
        return [*one] == [*other] and all(map(same, one.values(), other.values()))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return type(one) is type(other) and one == other


@settings(max_examples=500)
@given(value=VALUES)
def test_the_text_is_read_as_that_of_the_server(connection, value):
    """The text has jsonb's order of keys, no exponents and no signed zeros."""
    text = msgspec.json.encode(value).decode()
    stored = connection.execute("SELECT %s::jsonb::text", [text]).fetchone()[0]
    assert same(msgspec.json.decode(as_jsonb(text)), msgspec.json.decode(stored))


@pytest.mark.parametrize("number", ["1E+2", "1.50e1", "-0.00", "-0", "1e-400", "-1.5E+3", "1e16"])
def test_a_number_has_the_digits_that_the_server_writes(connection, number):
    """A number has the digits that the server writes, which a Decimal keeps."""
    stored = connection.execute("SELECT %s::jsonb::text", [number]).fetchone()[0]
    assert Decimal(as_jsonb(number)).as_tuple() == Decimal(stored).as_tuple()


def test_as_deep_as_a_message_may_be():
    """A message may be nested as deep as the limit without a RecursionError."""
    text = "[" * 500 + "]" * 500
    assert as_jsonb(text) == text


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (str, True),
        (int | None, True),
        (list[tuple[str, float]], True),
        (float | int, False),
        (dict[str, str], False),
        (list, False),
        (Annotated[str, msgspec.Meta(extra={"unhashable": []})], True),
        (Any, False),
        (set[frozenset[Any]], False),
    ],
)
def test_the_type_of_a_field_decides_whether_it_is_rewritten(hint, expected):
    """The type of a field decides whether its text must be rewritten."""
    assert reads_the_same(hint) is expected
