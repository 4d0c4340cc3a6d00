"""Between plain dataclasses and the camelCase JSON that every Message DB client expects.

msgspec converts and validates. It renames the fields of its own structs only, so each dataclass
gets a struct as its *twin*: the same fields under camelCase names, made once and kept. Numbers of
type `Decimal` are JSON numbers, digit for digit.
"""

import dataclasses
import datetime
import enum
import functools
import math
import types
import typing
import uuid
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from reservation.errors import told

T = TypeVar("T")

_encoder = msgspec.json.Encoder(decimal_format="number")


def encode(message: object) -> str:
    """Return a dataclass instance as JSON text with camelCase keys.

    Raises:
        msgspec.MsgspecError: a field does not hold what its type says, or a number is not finite.
        TypeError: it is no dataclass instance.
    """
    class_: Any = type(message)
    twin = _twin(class_)
    _refuse_not_finite(message)
    return _encoder.encode(msgspec.convert(message, twin, from_attributes=True)).decode()


def decode(type_: type[T], data: str) -> T:
    """Return JSON text with camelCase keys as an instance of a dataclass.

    Fields that the dataclass does not have are passed over.

    Raises:
        msgspec.MsgspecError: the text does not fit, or a number in it is not finite. Its text may
            repeat a value; `explain` leaves that out.
    """
    class_: Any = type_
    message: T = _decoder(class_)(data)
    _refuse_not_finite(message)
    return message


def explain(error: Exception) -> str:
    """Return what an error says of the field and the kind, without the value that it may repeat."""
    if not isinstance(error, msgspec.MsgspecError):
        return told(error)
    if error.__cause__ is not None:  # a class that checks itself, and tells what it saw
        return told(error.__cause__)
    head, at, path = str(error).rpartition(" - at `")
    head = head or path
    if head.startswith(("Invalid enum value", "Invalid value")):  # which it then repeats
        head = "Invalid value"
    return f"{head}{at}{path}" if at else head


def camel_case(name: str) -> str:
    """Return a field's name as it stands in JSON: ``account_id`` is ``accountId``."""
    head, *tail = name.split("_")
    return head + "".join(map(str.capitalize, tail))


def prepare(type_: type) -> None:
    """Make the twin of a dataclass, so that a type that JSON has no form for shows at once.

    Raises:
        TypeError: a field's type can not be converted.
        NameError: a field's type is not defined.
    """
    class_: Any = type_
    _decoder(class_)


def _refuse_not_finite(value: object, path: str = "$") -> None:
    """Refuse NaN and infinities, which JSON has no numbers for."""
    if isinstance(value, float | Decimal):
        if not math.isfinite(value):
            raise msgspec.ValidationError(f"Expected a finite number - at `{path}`")
    elif dataclasses.is_dataclass(value):
        class_: Any = type(value)
        for name in _fields_with_numbers(class_):
            _refuse_not_finite(getattr(value, name), f"{path}.{camel_case(name)}")
    elif isinstance(value, Mapping):
        for one in value.values():
            _refuse_not_finite(one, f"{path}[...]")
    elif isinstance(value, Collection) and not isinstance(value, str | bytes | bytearray):
        for one in value:
            _refuse_not_finite(one, f"{path}[...]")


# Any, from here on: structs that are made at run time have no static type.


@functools.cache
def _decoder(type_: Any) -> Callable[[str], Any]:
    decoder = msgspec.json.Decoder(_twin(type_))

    def decode_one(data: str) -> Any:
        return msgspec.convert(decoder.decode(data), type_, from_attributes=True)

    return decode_one


@functools.cache
def _twin(type_: Any) -> Any:
    hints = typing.get_type_hints(type_)
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


def _twin_hint(hint: Any) -> Any:
    """Replace each dataclass in a type hint by its twin."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _twin(hint)
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if not arguments or origin is typing.Literal:
        return hint
    twins = tuple(_twin_hint(argument) for argument in arguments)
    if origin is types.UnionType or origin is typing.Union:
        return functools.reduce(lambda one, other: one | other, twins)
    if origin is typing.Annotated:
        return typing.Annotated[(twins[0], *hint.__metadata__)]
    return origin[twins]


# What can not be NaN or infinite; anything else is looked into.
_WITHOUT_NUMBERS = frozenset(
    {str, int, bool, bytes, types.NoneType, uuid.UUID}
    | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
)


@functools.cache
def _fields_with_numbers(type_: Any) -> tuple[str, ...]:
    """Return the fields of a dataclass that may hold a number that is not finite."""
    hints = typing.get_type_hints(type_)
    names = (field.name for field in dataclasses.fields(type_))
    return tuple(name for name in names if _may_hold_numbers(hints[name]))


def _may_hold_numbers(hint: Any) -> bool:
    if dataclasses.is_dataclass(hint):
        class_: Any = hint
        return bool(_fields_with_numbers(class_))
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return False
    if arguments:
        return any(map(_may_hold_numbers, arguments))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return False
    return hint not in _WITHOUT_NUMBERS
