"""Between plain dataclasses and the camelCase JSON that every Message DB client expects.

msgspec converts and validates. It renames the fields of its own structs only, so each dataclass
gets a struct as its *twin*: the same fields under camelCase names, made once and kept. Numbers of
type `Decimal` are JSON numbers, digit for digit.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_encoder = msgspec.json.Encoder(decimal_format="number")


def encode(message: object) -> str:
    """Return a dataclass instance as JSON text with camelCase keys."""
    class_: Any = type(message)
    twin = _twin(class_)
    return _encoder.encode(msgspec.convert(message, twin, from_attributes=True)).decode()


def decode(type_: type[T], data: str) -> T:
    """Return JSON text with camelCase keys as an instance of a dataclass.

    Fields that the dataclass does not have are passed over.

    Raises:
        msgspec.MsgspecError: the text does not fit; the error names the field, never the value.
    """
    class_: Any = type_
    message: T = _decoder(class_)(data)
    return message


def camel_case(name: str) -> str:
    """Return a field's name as it stands in JSON: ``account_id`` is ``accountId``."""
    head, *tail = name.split("_")
    return head + "".join(map(str.capitalize, tail))


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
