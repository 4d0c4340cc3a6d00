"""The struct that stands for a class in JSON: the same fields under the names that are stored.

msgspec renames the fields of its own structs only, so each class of whichever kind gets a struct as
its *twin*, which is made once and kept. So all kinds have the same JSON.
"""

# Any: structs that are made at run time, and the classes they are made of, have no static type.

import enum
import functools
import types
import typing
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import inspect as msgspec_inspect

from reservation.serialization.adapters.adapter import PLAIN, FieldForm, with_classes
from reservation.serialization.fields import (
    adapter_of,
    forms_of,
    hints_of,
    is_message_class,
)


def shown(hint: Any) -> str:
    """Return a type hint as it is written, for errors."""
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


# The class that a twin stands for.
class_of: dict[type, Any] = {}


@functools.cache
def twin(type_: Any) -> Any:
    """Return the struct that stands for a class, to decode and to check.

    A field that is missing has its default there, or is unset if the class fills it in itself.
    """
    adapter = adapter_of(type_)
    fields: list[tuple[str, Any, Any]] = []
    for form in forms_of(type_):
        hint, options = with_classes(form.hint, _twin_class), {}
        if form.aliases or not (form.required or adapter.is_native):
            text = _shown_default(form)
            if text is not None:
                about = msgspec.Meta(extra_json_schema={"default": text})
                hint = typing.Annotated[hint, about]
            hint, options = hint | msgspec.UnsetType, {"default": msgspec.UNSET}
        elif not form.required:
            options = {"default": form.default, "default_factory": form.factory}
        names = alias_names(form)
        for name, key in zip((form.name, *names), form.keys, strict=True):
            fields.append((name, hint, msgspec.field(name=key, **options)))
    # Of twins with one name, msgspec tells the schemas apart by their modules.
    module = f"{type_.__module__}.{type_.__qualname__}"
    said = adapter.options(type_)
    made = msgspec.defstruct(type_.__name__, fields, kw_only=True, module=module, **said)
    class_of[made] = type_
    return made


def alias_names(form: FieldForm) -> tuple[str, ...]:
    """Return the names of a twin's fields for the aliases of one."""
    return tuple(f"{form.name}__alias{n}" for n, _ in enumerate(form.aliases, start=1))


def _shown_default(form: FieldForm) -> str | None:
    """Return a default as text that is the same in each process; None if there is none."""
    default = form.default
    if default is msgspec.NODEFAULT:
        return None
    plain = type(default) in PLAIN or isinstance(default, enum.Enum)
    return repr(default) if plain else type(default).__name__


def _twin_class(class_: Any) -> Any:
    return twin(class_) if is_message_class(class_) else class_


def may_hold(hint: Any, harmless: frozenset[Any]) -> bool:
    """Return whether a value of this type hint may be, or hold, anything but the harmless types."""
    if is_message_class(hint):
        return any(may_hold(field, harmless) for field in hints_of(hint).values())
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return False
    if origin is typing.Annotated:
        return may_hold(arguments[0], harmless)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        # A Decimal is harmful as a key even where it is harmless as a value.
        if may_hold(arguments[0], harmless - {Decimal}):
            return True
        arguments = arguments[1:] or (Any,)
    if arguments:
        return any(may_hold(part, harmless) for part in arguments if part is not Ellipsis)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return False
    return hint is not None and hint not in harmless


@functools.cache
def decodes_as_written(type_: Any) -> bool:
    """Return whether JSON text of a class decodes to the same once jsonb has rewritten it.

    jsonb may change the order of a mapping's keys, and write a number without its exponent, which
    is read as an integer where the type leaves that open.
    """
    return all(map(reads_the_same, hints_of(type_).values()))


def reads_the_same(hint: Any) -> bool:
    """Return for a type hint what `decodes_as_written` returns for a class."""
    if is_message_class(hint):
        return decodes_as_written(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return all(isinstance(member.value, str | int) for member in hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return True
    if origin is typing.Annotated:
        return reads_the_same(arguments[0])
    if origin is types.UnionType or origin is typing.Union:
        if sum(number in arguments for number in (int, float, Decimal)) > 1:
            return False
    elif origin not in (None, list, tuple, set, frozenset):
        return False
    if arguments:
        return all(reads_the_same(part) for part in arguments if part is not Ellipsis)
    return hint is None or (isinstance(hint, type) and hint in PLAIN)


def without_form(info: Any, seen: frozenset[int] = frozenset()) -> str | None:
    """Return which part of a type, as msgspec describes it, has no form in JSON; None for none."""
    if id(info) in seen:
        return None
    seen |= {id(info)}
    if isinstance(info, msgspec_inspect.CustomType):
        any_value = (object, msgspec.UnsetType)
        return None if info.cls in any_value else f"a {info.cls.__name__}"
    if isinstance(info, msgspec_inspect.DictType) and isinstance(info.key_type, _NO_KEYS):
        return "a dictionary with keys that are not strings"
    fields = [field.type for field in getattr(info, "fields", ())]
    parts = [getattr(info, name, None) for name in ("item_type", "key_type", "value_type")]
    several = [*getattr(info, "item_types", ()), *getattr(info, "types", ())]
    found = (without_form(part, seen) for part in [*fields, *parts, *several] if part is not None)
    return next((problem for problem in found if problem is not None), None)


_NO_KEYS = (
    msgspec_inspect.CollectionType,
    msgspec_inspect.TupleType,
    msgspec_inspect.DictType,
    msgspec_inspect.StructType,
    msgspec_inspect.DecimalType,
)
