"""The idempotence key of a command, as its handler is declared with it."""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from types import EllipsisType
from typing import Any, Generic, cast

from reservation.errors import DeclarationError
from reservation.handlers.checks.declaration_checks import check_taken
from reservation.handlers.protocols import Command
from reservation.idempotence.key import (
    KeyFunction,
    KeyValue,
    former_key,
    key_fields,
)
from reservation.idempotence.reserve import Reservation
from reservation.messages.stream_name import reservation_category


@dataclass(frozen=True, slots=True)
class Key(Generic[Command]):
    """The idempotence key of a command, and the place where it is reserved.

    ``@account.handle(Withdraw, key=Key("withdrawal_id", ignoring="time"))``

    A command is copied to the stream ``<into>-<per>+<key>``, or ``<into>-<key>`` with ``per=None``,
    and handled from there. The first copy wins; a reissue is discarded.

    Attributes:
        fields: the field, or fields, that hold the key; or a function that takes the command and
            returns the key.
        into: the reservation category; None for ``<component>Transaction``.
        per: the field whose value is the first part of the stream's id, which keeps commands of an
            entity in order in a consumer group; the component's ``id`` if it is left out. None for
            streams that are named by the key alone.
        ignoring: the fields in which a reissue may differ from the first issue, such as the time
            of sending.
        former_key: what the id of the reservation streams was made of before ``fields`` or ``per``
            was changed: the field, the fields in their order, or a function of the command. A
            command that is reserved under that name is a duplicate too. None if nothing was
            changed.
        shared: whether commands of several types, each with a key of these fields in this
            category, never have the same key, as with a ``request_id`` that is new for each
            command. Without it such a second type is refused: its commands would be conflicts
            with those of the first.
    """

    fields: str | Iterable[str] | Callable[[Command], KeyValue]
    _: KW_ONLY
    into: str | None = None
    per: str | EllipsisType | None = ...
    ignoring: str | Iterable[str] = ()
    former_key: str | Iterable[str] | Callable[[Command], KeyValue] | None = None
    shared: bool = False

    def reservation(self, component: str, command: type, id_: str) -> Reservation:
        """Return how commands are reserved by this key.

        Args:
            component: the component's name.
            command: the command's class.
            id_: the component's ``id``.

        Raises:
            DeclarationError: a field does not exist or cannot be part of a key, none is named, or a
                function cannot be called with the command.
        """
        for option, given in {"key=": self.fields, "former_key=": self.former_key}.items():
            if callable(given):
                check_taken(component, option, command, given)
        keys = _keys(command, self.fields)
        per = id_ if self.per is ... else self.per
        if per is not None and not isinstance(per, str):
            raise DeclarationError(
                f"{component}: per= of {command.__name__} is a {type(per).__name__}; give it the "
                f"name of a field, or None for streams that are named by the key alone"
            )
        if per is not None:
            key_fields(command, per)
        into = reservation_category(component) if self.into is None else self.into
        former = former_key(command, self.former_key)
        return Reservation(command, into, keys, per, former, self.shared)


def key_of(component: str, command: type, key: Any) -> Key[Any]:
    """Return what was given as a key, as a `Key`."""
    if isinstance(key, Key):
        return key
    if isinstance(key, type):
        given = f"the class {key.__name__}"
    elif isinstance(key, str | Iterable) or callable(key):
        return Key(cast(Any, key))
    else:
        given = f"a {type(key).__name__}"
    raise DeclarationError(
        f"{component}: key= of {command.__name__} is {given}; give it the name of a field, several "
        f"names, a function of the command, or a Key"
    )


def _keys(command: type, fields: Any) -> tuple[str, ...] | KeyFunction:
    if callable(fields):
        return fields  # type: ignore[no-any-return]
    named = key_fields(command, fields)
    if not named:
        raise DeclarationError(
            f"{command.__name__}: the idempotence key names no field; name at least one"
        )
    return named
