"""Whether two messages say the same: their fields, as the class has them today."""

import dataclasses
from collections.abc import Collection
from decimal import Decimal
from typing import Any

from reservation.serialization.struct_types import names_of

_NUMBERS = (int, float, Decimal)


def same_content(one: object, other: object, volatile: Collection[str] = ()) -> bool:
    """Return whether two decoded messages have the same content.

    Numbers are compared by their value, as in jsonb: 1 is 1.0, and is not true.

    Args:
        one: a message, decoded.
        other: another one.
        volatile: the fields in which they may differ.
    """
    if type(one) is not type(other) or not dataclasses.is_dataclass(one):
        return False
    # Any: the names of a class that is known only now.
    type_: Any = type(one)
    return all(
        _same(getattr(one, name), getattr(other, name))
        for name in names_of(type_)
        if name not in volatile
    )


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
        return left == right
    if type(left) is not type(right):
        return False
    if dataclasses.is_dataclass(left):
        return same_content(left, right)
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            key in right and _same(value, right[key]) for key, value in left.items()
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)
