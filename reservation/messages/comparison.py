"""Comparison of two messages by their fields, as the class has them today.

Consumers compare commands of one key so, and Spark compares them again, with the same functions.
"""

from collections.abc import Callable, Collection, Iterator
from decimal import Decimal
from typing import Any

import msgspec

from reservation.messages.message import StoredMessage
from reservation.serialization.fields import is_message, names_of

_NUMBERS = (int, float, Decimal)

_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=Decimal)


def same_meaning(
    names: Collection[str],
    ignoring: Collection[str],
    command: StoredMessage,
    first: StoredMessage,
    decoded: Callable[[StoredMessage], object | None],
) -> bool:
    """Return whether a command means the same today as the first one of its key.

    Both are decoded, upcast and with defaults, and compared without the fields that may differ. A
    command that cannot be decoded, or whose first cannot be, does not mean the same.
    """
    if first.type not in names:
        return False
    one, other = decoded(command), decoded(first)
    return other is not None and same_content(one, other, ignoring)


def same_content(one: object, other: object, ignoring: Collection[str] = ()) -> bool:
    """Return whether two decoded messages have the same content.

    Numbers are compared by their value, as in jsonb: 1 is 1.0, and is not true.
    """
    if type(one) is not type(other) or not is_message(one):
        return False
    return next(differing_fields(one, other, ignoring), None) is None


def differing_fields(one: object, other: object, ignoring: Collection[str] = ()) -> Iterator[str]:
    """Give the names of the fields in which two instances of one class differ."""
    # Any: the names of a class that is known only now.
    type_: Any = type(one)
    for name in names_of(type_):
        if name not in ignoring and not _same(getattr(one, name), getattr(other, name)):
            yield name


def same_json(one: str, other: str, ignoring: Collection[str] = ()) -> bool:
    """Return whether two JSON texts have the same content, as `same_content` compares values."""
    left, right = _decoder.decode(one), _decoder.decode(other)
    for value in (left, right):
        if isinstance(value, dict):
            for name in ignoring:
                value.pop(name, None)
    return _same(left, right)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
        return left == right
    if type(left) is not type(right):
        return False
    if is_message(left):
        return same_content(left, right)
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            key in right and _same(value, right[key]) for key, value in left.items()
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)
