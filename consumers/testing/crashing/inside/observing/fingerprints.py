"""The value of an object with all that it holds, as a text to compare with later."""

import itertools
from collections.abc import Iterator, Mapping, Set
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from reservation.serialization.fields import is_message, state_of

_DEEPEST = 12

# Parts of an object that are looked at.
_LONGEST = 20_000
_CODE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)


def fingerprint(value: object) -> str:
    """Return a text that changes when an object or a part of it is changed.

    Two objects that hold equal values have equal fingerprints. Code, and what lies deeper than
    anybody reads, counts as its type.
    """
    try:
        return "".join(itertools.islice(_parts(value, _DEEPEST, set()), _LONGEST))
    except Exception:  # noqa: BLE001  a proxy may raise anything when it is looked at
        return f"<{type(value).__name__}>"


# Any: whatever handlers are given and keep.
def _parts(value: Any, depth: int, above: set[int]) -> Iterator[str]:
    if value is None or isinstance(value, str | bytes | int | float | bool):
        yield repr(value)
    elif depth == 0 or id(value) in above or isinstance(value, _CODE):
        yield f"<{type(value).__name__}>"
    else:
        inner = above | {id(value)}
        yield f"{type(value).__name__}("
        for name, part in _held(value):
            yield f"{name}="
            yield from _parts(part, depth - 1, inner)
            yield ","
        yield ")"


def _held(value: Any) -> Iterator[tuple[str, object]]:
    """Give what an object holds, under names."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield repr(key), part
    elif isinstance(value, Set):
        yield "", sorted(map(fingerprint, value))
    elif isinstance(value, list | tuple):
        for part in value:
            yield "", part
    elif is_message(value):
        yield from state_of(value).items()
    elif hasattr(value, "__dict__"):
        yield from vars(value).items()
    elif "__repr__" in vars(type(value)):
        yield "", repr(value)
