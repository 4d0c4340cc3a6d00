"""Values that never change, so that nobody needs a copy of them.

The annotations of a class decide that, once: to look at each of many parts would take as long as to
copy them. What a class says of its own fields is compared with the values that are in them; what it
says of the parts of a collection is relied on.
"""

import enum
import functools
import sys
import types
import typing
from typing import Any

from reservation.serialization.adapters.adapter import PLAIN
from reservation.serialization.fields import adapter_of, hints_of, is_message_class

# Any: classes and type hints of any component.

_NOTHING: frozenset[type] = frozenset()


@functools.cache
def never_changes(class_: Any) -> bool:
    """Return whether the instances of a class cannot change, by its annotations.

    These are plain values, members of an enumeration, and frozen classes and named tuples all of
    whose fields are annotated with such classes or with tuples, frozensets and `immutables.Map`
    of them.
    """
    return _is_immutable(class_, frozenset())


@functools.cache
def shareable_fields(class_: Any) -> dict[str, frozenset[type]]:
    """Return the fields of a class that are annotated with what cannot change.

    A value can be shared without looking at its parts if its class is one of those of its field.
    """
    fields = _hints(class_)
    return {name: _classes(hint) for name, hint in fields.items() if _is_immutable(hint, _NOTHING)}


def is_immutable(value: Any) -> bool:
    """Return whether a value cannot change, without looking at the parts of its collections."""
    class_: Any = type(value)
    if class_ in PLAIN:
        return True
    if not never_changes(class_):
        return False
    if issubclass(class_, enum.Enum):
        return True
    fields = shareable_fields(class_)
    for name, classes in fields.items():
        part = type(getattr(value, name, None))
        if part not in PLAIN and part not in classes:
            return False
    # What `__post_init__` may have set besides is not annotated.
    return not class_.__dictoffset__ or len(value.__dict__) == len(fields)


@functools.cache
def is_frozen(class_: Any) -> bool:
    """Return whether instances of a class are those of a frozen class or a named tuple.

    Their attributes cannot be set; the values in these may still change.
    """
    if _is_named_tuple(class_):
        return True
    return is_message_class(class_) and adapter_of(class_).is_frozen(class_)


def is_map(class_: Any) -> bool:
    """Return whether a class is `immutables.Map`, which need not be installed."""
    immutables = sys.modules.get("immutables")
    return immutables is not None and class_ is immutables.Map


def _is_named_tuple(class_: Any) -> bool:
    """Return whether a class is a named tuple, and not one that derives from such."""
    return (
        isinstance(class_, type) and class_.__bases__ == (tuple,) and hasattr(class_, "_fields")
    ) and not class_.__dictoffset__


def _hints(class_: Any) -> dict[str, Any]:
    """Return the type hints of the fields of a class or a named tuple; Any if one is unknown."""
    try:
        if is_message_class(class_):
            return hints_of(class_)
        if _is_named_tuple(class_):
            hints = typing.get_type_hints(class_, include_extras=True)
            return {name: hints.get(name, Any) for name in class_._fields}
    except (NameError, TypeError):
        return {"": Any}
    return {}


def _is_immutable(hint: Any, within: frozenset[Any]) -> bool:
    """Return whether values of a type hint cannot change; one that refers to itself may."""
    if hint is None or (isinstance(hint, type) and (hint in PLAIN or hint in within)):
        return True
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return True
    if origin is typing.Annotated:
        return _is_immutable(hint.__origin__, within)
    if origin in (types.UnionType, typing.Union, tuple, frozenset) or is_map(origin):
        parts = (part for part in typing.get_args(hint) if part is not Ellipsis)
        return all(_is_immutable(part, within) for part in parts)
    if not isinstance(hint, type) or origin is not None:
        return False
    if issubclass(hint, enum.Enum):
        return True
    class_: Any = hint
    hints = _hints(class_)
    return is_frozen(class_) and all(_is_immutable(one, within | {hint}) for one in hints.values())


def _classes(hint: Any) -> frozenset[type]:
    """Return the classes that values of a type hint have, beside plain ones."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _classes(hint.__origin__)
    if origin in (types.UnionType, typing.Union):
        return _NOTHING.union(*map(_classes, typing.get_args(hint)))
    class_ = origin or hint
    return frozenset({class_}) if isinstance(class_, type) else _NOTHING
