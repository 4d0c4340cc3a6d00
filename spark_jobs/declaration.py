"""What a component declares about its keys, as text that travels to where a read is planned."""

import dataclasses
from collections.abc import Sequence

import msgspec

from reservation.codec import camel_case
from reservation.component import Component


class DeclaredKey(msgspec.Struct, frozen=True):
    """How the key of commands of one type is made.

    Attributes:
        category: the category that the key's stream is in.
        fields: the JSON names of the fields that make it, in their order.
        volatile: the JSON names of the fields in which a reissue may differ.
        by_function: whether it takes the component's own code, because the key is a function of the
            command, or one of its fields has a default that the data may leave out.
        within: whether the copies are in the command category itself.
    """

    category: str
    fields: tuple[str, ...]
    volatile: tuple[str, ...]
    by_function: bool
    within: bool


class Declaration(msgspec.Struct, frozen=True):
    """The keys of a component, by the type of the command."""

    keys: dict[str, DeclaredKey] = {}

    def to_json(self) -> str:
        """Return it as text, for an option of the source."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> "Declaration":
        """Return what `to_json` made text of."""
        return msgspec.json.decode(text, type=cls)

    @property
    def by_function(self) -> list[str]:
        """The types whose keys the component's own code makes."""
        return [type_ for type_, key in self.keys.items() if key.by_function]

    @classmethod
    def of(cls, component: Component) -> "Declaration":
        """Return what a component declares: the same that its consumers read."""
        reserve, initiate = component.volatile("reserve"), component.volatile("initiate")
        keys = {}
        for type_, reservation in component.reservations.items():
            leading = [] if reservation.entity is None else [reservation.entity]
            fields = [] if callable(reservation.key) else [*leading, *reservation.key]
            keys[type_] = DeclaredKey(
                category=reservation.into or component.command_category,
                fields=_json_names(fields),
                volatile=tuple(reserve[type_]),
                by_function=callable(reservation.key) or _may_lack(reservation.command, fields),
                within=reservation.into is None,
            )
        for type_, initiation in component.initiations.items():
            keys[type_] = DeclaredKey(
                category=component.name,
                fields=_json_names([component.id]),
                volatile=tuple(initiate[type_]),
                by_function=_may_lack(initiation.command, [component.id]),
                within=False,
            )
        return cls(keys)


def categories_of(component: Component) -> list[str]:
    """Return the categories in which a component's messages are: commands, copies and events."""
    return [component.command_category, *component.reservation_categories, component.name]


def _json_names(fields: Sequence[str]) -> tuple[str, ...]:
    return tuple(camel_case(field) for field in fields)


def _may_lack(command: type, fields: Sequence[str]) -> bool:
    """Tell whether the data may leave one of these fields out, and the class then fill it in."""
    missing = dataclasses.MISSING
    return any(
        field.name in fields and (field.default, field.default_factory) != (missing, missing)
        for field in dataclasses.fields(command)
    )
