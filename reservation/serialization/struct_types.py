"""The struct that stands for a dataclass in JSON: the same fields under camelCase names.

msgspec renames the fields of its own structs only, so each dataclass gets a struct as its *twin*,
which is made once and kept.
"""

# Any: structs that are made at run time, and the classes they are made of, have no static type.

import dataclasses
import datetime
import enum
import functools
import inspect
import types
import typing
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import inspect as msgspec_inspect

# Values of these types have no parts, and their exact type alone says that they fit.
PLAIN = frozenset(
    {str, int, float, bool, bytes, types.NoneType, Decimal, uuid.UUID}
    | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
)


def camel_case(name: str) -> str:
    """Return a field's name as it stands in JSON: ``account_id`` is ``accountId``."""
    head, *tail = name.split("_")
    return head + "".join(map(str.capitalize, tail))


@functools.cache
def names_of(type_: Any) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(type_))


@functools.cache
def hints_of(type_: Any) -> dict[str, Any]:
    """Return the type hint of each field of a dataclass."""
    hints = typing.get_type_hints(type_, include_extras=True)
    return {name: hints[name] for name in names_of(type_)}


def shown(hint: Any) -> str:
    """Return a type hint as it is written, for errors."""
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


@functools.cache
def twin(type_: Any) -> Any:
    """Return the struct that stands for a dataclass, with its defaults, to decode and to check."""
    hints = hints_of(type_)
    fields: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(type_):
        options: dict[str, Any] = {"name": camel_case(field.name)}
        if field.default is not dataclasses.MISSING:
            options["default"] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            options["default_factory"] = field.default_factory
        fields.append((field.name, _twin_hint(hints[field.name]), msgspec.field(**options)))
    return msgspec.defstruct(
        type_.__name__,
        fields,
        kw_only=True,
        omit_defaults=getattr(type_, "__omit_defaults__", False),
    )


def may_hold(hint: Any, harmless: frozenset[Any]) -> bool:
    """Return whether a value of this type hint may be, or hold, anything but the harmless types."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        class_: Any = hint
        return any(may_hold(field, harmless) for field in hints_of(class_).values())
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
    """Return whether JSON text of a dataclass decodes to the same once jsonb has rewritten it.

    jsonb may change the order of a mapping's keys, and write a number without its exponent, which
    is read as an integer where the type leaves that open.
    """
    return all(map(reads_the_same, hints_of(type_).values()))


def reads_the_same(hint: Any) -> bool:
    """Return for a type hint what `decodes_as_written` returns for a dataclass."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
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


def holds_plain_values(type_: Any) -> bool:
    """Return whether all that instances of a dataclass are is values of plain types in a dict.

    Then no code of the class runs when its fields are set, and nothing in a field has parts that
    would have to be made as well.
    """
    if not type_.__dictoffset__ or inspect.isabstract(type_):
        return False
    # A field for the constructor alone, or of the class, is no field of the instances.
    if hasattr(type_, "__post_init__") or len(type_.__dataclass_fields__) > len(names_of(type_)):
        return False
    for name, hint in hints_of(type_).items():
        attribute = inspect.getattr_static(type_, name, None)
        if not _is_plain_hint(hint) or inspect.isdatadescriptor(attribute):
            return False
    return True


def _is_plain_hint(hint: Any) -> bool:
    """Return whether a type hint is a plain type, or a union of such."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return all(map(_is_plain_hint, typing.get_args(hint)))
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


def _twin_hint(hint: Any) -> Any:
    """Replace each dataclass in a type hint by its twin; a hint without one is returned as is."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return twin(hint)
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if not arguments or origin is typing.Literal:
        return hint
    twins = tuple(_twin_hint(argument) for argument in arguments)
    if all(made is argument for made, argument in zip(twins, arguments, strict=True)):
        return hint
    if origin is types.UnionType or origin is typing.Union:
        return functools.reduce(lambda left, right: left | right, twins)
    if origin is typing.Annotated:
        return typing.Annotated[(twins[0], *hint.__metadata__)]
    return origin[twins]
