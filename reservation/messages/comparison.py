"""Whether two messages say the same: their fields, as the class has them today.

Consumers compare commands of one key so, and Spark compares them again, with the same functions.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import Any, Protocol

import msgspec

from reservation.messages.message import StoredMessage
from reservation.messages.registry import MessageTypes
from reservation.serialization.struct_types import names_of

_NUMBERS = (int, float, Decimal)

_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=Decimal)


class DeclaredCommand(Protocol):
    """What is declared of commands that have a key."""

    @property
    def command(self) -> type:
        """The command's dataclass."""

    @property
    def volatile(self) -> tuple[str, ...]:
        """The fields in which a reissue may differ."""


class Declared(Protocol):
    """What a component declares of its commands, by the types that they are stored under."""

    @property
    def types(self) -> MessageTypes:
        """The classes."""

    @property
    def reservations(self) -> Mapping[str, DeclaredCommand]:
        """The commands that are reserved."""

    @property
    def initiations(self) -> Mapping[str, DeclaredCommand]:
        """The commands that start a stream."""


def same_meaning(
    declared: Declared,
    command: StoredMessage,
    first: StoredMessage,
    decoded: Callable[[StoredMessage], object | None],
) -> bool:
    """Return whether a command means the same today as the first one of its key.

    Both are decoded, upcast and with defaults, and compared without the fields that may differ. A
    command that cannot be decoded, or whose first cannot be, does not mean the same.

    Args:
        declared: the component that declares them.
        command: the command.
        first: what was there first under its key.
        decoded: decodes one of them; returns None if it cannot be decoded.
    """
    of_type = declared.reservations.get(command.type) or declared.initiations.get(command.type)
    if of_type is None or first.type not in declared.types.names_of(of_type.command):
        return False
    one, other = decoded(command), decoded(first)
    return other is not None and same_content(one, other, of_type.volatile)


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


def same_json(one: str, other: str, volatile: Collection[str] = ()) -> bool:
    """Return whether two JSON texts have the same content, as `same_content` compares values.

    Args:
        one: a JSON text, such as the data of a message.
        other: another one.
        volatile: the names in an object that are left out.
    """
    left, right = _decoder.decode(one), _decoder.decode(other)
    for value in (left, right):
        if isinstance(value, dict):
            for name in volatile:
                value.pop(name, None)
    return _same(left, right)


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
