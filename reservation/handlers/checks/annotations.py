"""The annotations of a declared function, as far as they can be resolved."""

import inspect
import types
import typing
from collections.abc import Sequence
from typing import Any

_NoneType = type(None)


def annotations(function: Any) -> dict[str, Any]:
    """Return the annotations of a function that can be resolved and are its own."""
    if not inspect.isfunction(function) or hasattr(function, "__wrapped__"):
        return {}
    try:
        return typing.get_type_hints(function)
    except Exception:  # noqa: BLE001  a name that is not defined yet, or anything else
        known = inspect.get_annotations(function).items()
        return {name: hint for name, hint in known if not isinstance(hint, str)}


def leaves_of(hint: Any) -> Any:
    """Yield the classes that a return annotation names, also within unions, lists and tuples."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        yield from leaves_of(arguments[0])
    elif origin is types.UnionType or origin is typing.Union:
        for member in arguments:
            yield from leaves_of(member)
    elif isinstance(origin, type) and issubclass(origin, Sequence):
        for member in arguments:
            if member is not Ellipsis:
                yield from leaves_of(member)
    else:
        yield _NoneType if hint is None else hint


def accepts(hint: Any, class_: type | None) -> bool:
    """Return whether a type hint accepts an argument of a class; True if unclear."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return accepts(arguments[0], class_)
    if origin is types.UnionType or origin is typing.Union:
        return any(accepts(member, class_) for member in arguments)
    accepted = _NoneType if hint is None else origin or hint
    if (
        accepted is Any
        or not isinstance(accepted, type)
        or getattr(accepted, "_is_protocol", False)
    ):
        return True
    return issubclass(_NoneType if class_ is None else class_, accepted)
