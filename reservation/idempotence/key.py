"""The idempotence key: what two sends of the same intent have in common.

A key is taken from one or more named fields of a command, or computed by a function of it. It
becomes the id of the reservation stream, alone or behind the id of the command's entity.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from reservation import stream_name
from reservation.errors import DeclarationError, IdempotenceKeyError, StreamNameError

# Any: each component has its own command classes, and a key function takes the ones it is for.
KeyFunction = Callable[[Any], "str | int | Sequence[str | int]"]


def check_fields(command: type, names: Sequence[str]) -> None:
    """Make sure that a command has the fields that are to tell something about it.

    Raises:
        DeclarationError: it lacks one, or is no dataclass.
    """
    if not dataclasses.is_dataclass(command):
        raise DeclarationError(
            f"{command.__name__} is not a dataclass; decorate it with @dataclass"
        )
    fields = [field.name for field in dataclasses.fields(command)]
    for name in names:
        if name not in fields:
            raise DeclarationError(
                f"{command.__name__} has no field {name!r}; it has {', '.join(fields)}"
            )


def key_parts(command: object, key: tuple[str, ...] | KeyFunction) -> list[str]:
    """Return the parts of a command's idempotence key, as texts.

    Args:
        command: the command, decoded.
        key: the names of the fields that hold it, or a function that returns it.

    Raises:
        IdempotenceKeyError: a part is absent, empty, or neither a text nor a whole number.
    """
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

    Raises:
        IdempotenceKeyError: it is absent, empty, or neither a text nor a whole number.
    """
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    problem = "is empty" if value is None or value == "" else f"is a {type(value).__name__}"
    raise IdempotenceKeyError(f"{name} {problem}; an idempotence key is a text or a whole number")


def key_stream_name(category: str, parts: Sequence[str]) -> str:
    """Return the name of the stream that reserves a key.

    Raises:
        IdempotenceKeyError: the parts can not be told apart in a stream name, or make none.
    """
    try:
        return stream_name.of(category, *parts)
    except StreamNameError as error:
        raise IdempotenceKeyError(str(error)) from error
