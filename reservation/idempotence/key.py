"""The idempotence key: what two sends of the same intent have in common.

A key is taken from one or more named fields of a command, or computed by a function of it. It
becomes the id of the reservation stream, by itself or after the id of the command's entity.
"""

import types
import typing
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from reservation.errors import DeclarationError, IdempotenceKeyError, StreamNameError
from reservation.messages import stream_name
from reservation.messages.stream_name import MAX_BYTES
from reservation.serialization.adapters.adapter import UnfitClassError, refusal
from reservation.serialization.fields import hints_of, names_of
from reservation.serialization.struct_types import shown

# Any: each component has its own command classes, and a key function takes the ones it is for.
KeyPart = str | int | UUID | date | Decimal | Enum
KeyValue = KeyPart | Sequence[KeyPart]
KeyFunction = Callable[[Any], KeyValue]

_KEY_TYPES = (str, int, UUID, date, Decimal)
_KINDS = "a string, a whole number, a UUID, a date, a Decimal or a member of an enum"


def check_fields(command: type, names: Sequence[str]) -> tuple[str, ...]:
    """Return the fields of a command, having made sure that certain ones are among them."""
    try:
        fields = names_of(command)
    except UnfitClassError as error:
        raise DeclarationError(refusal(command, error)) from error
    except (NameError, TypeError) as error:
        raise DeclarationError(f"{command.__name__} cannot be a message: {error}") from error
    for name in names:
        if name not in fields:
            raise DeclarationError(
                f"{command.__name__} has no field {name!r}; it has {', '.join(fields)}"
            )
    return fields


def fields_of(command: type, names: str | Iterable[str]) -> tuple[str, ...]:
    """Return field names as a tuple, having made sure that the command has them."""
    if not isinstance(names, Iterable):
        raise DeclarationError(
            f"{command.__name__}: {names!r} names no field; give the name of a field, or several"
        )
    wanted = (names,) if isinstance(names, str) else tuple(names)
    check_fields(command, wanted)
    return wanted


def key_fields(command: type, names: str | Iterable[str]) -> tuple[str, ...]:
    """Return field names, having made sure that their values can be parts of a stream's name."""
    wanted = fields_of(command, names)
    _check_key_types(command, wanted)
    return wanted


def former_key(
    command: type, former: str | Iterable[str] | KeyFunction | None
) -> tuple[str, ...] | KeyFunction | None:
    """Return what the id of a command's reservation streams was made of before."""
    if former is None or callable(former):
        return former
    fields = fields_of(command, former)
    if not fields:
        raise DeclarationError(
            f"{command.__name__}: former_key= names no field; leave it out where reservations "
            f"were always named as they are now"
        )
    return fields


def key_parts(command: object, key: tuple[str, ...] | KeyFunction) -> list[str]:
    """Return the parts of a command's idempotence key, as texts."""
    if callable(key):
        value = key(command)
        values = list(value) if isinstance(value, list | tuple) else [value]
        if not values:
            raise IdempotenceKeyError("the key function returned nothing")
        return [
            key_part(part, f"part {n} of what the key function returned")
            for n, part in enumerate(values)
        ]
    return [key_part(getattr(command, name), f"field {name}") for name in key]


def key_part(value: object, name: str) -> str:
    """Return one value as a part of a stream's id.

    Equal values have equal texts: a Decimal has no zeros at its end, a member of an enum is its
    value.
    """
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal) and value.is_finite():
        return _digits(value)
    problem = "is empty" if value is None or value == "" else f"is a {type(value).__name__}"
    raise IdempotenceKeyError(f"{name} {problem}; an idempotence key is {_KINDS}")


def _digits(value: Decimal) -> str:
    if not value:
        return "0"
    if abs(value.adjusted()) > MAX_BYTES:  # even its zeros would be too long for a name
        return "0" * (MAX_BYTES + 1)
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _check_key_types(command: type, names: Sequence[str]) -> None:
    try:
        hints = hints_of(command)
    except (NameError, TypeError):  # the registry of types has the better error
        return
    for name in names:
        if not can_be_key(hints[name]):
            raise DeclarationError(
                f"{command.__name__}.{name} is a {shown(hints[name])} and cannot be part of a "
                f"key; a key is {_KINDS}: use another field, or a function of the command"
            )


def can_be_key(hint: Any) -> bool:
    """Return whether a value of this type hint can be part of a key; True if unclear."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, typing.NewType):
        return can_be_key(hint.__supertype__)
    if origin is typing.Annotated:
        return can_be_key(arguments[0])
    if origin is types.UnionType or origin is typing.Union:
        return any(can_be_key(argument) for argument in arguments)
    if origin is typing.Literal:
        return any(
            isinstance(argument, str | int) and not isinstance(argument, bool)
            for argument in arguments
        )
    class_ = origin or hint
    if class_ in (Any, object) or not isinstance(class_, type):
        return class_ is not None
    if issubclass(class_, Enum):
        return all(can_be_key(type(member.value)) for member in class_)
    return issubclass(class_, _KEY_TYPES) and not issubclass(class_, bool | datetime)


def key_stream_name(category: str, parts: Sequence[str]) -> str:
    """Return the name of the stream that reserves a key."""
    try:
        return stream_name.of(category, *parts)
    except StreamNameError as error:
        raise IdempotenceKeyError(str(error)) from error
