"""What a component declares about its keys, as text for the process that plans a read."""

import dataclasses
from collections.abc import Sequence

import msgspec

from reservation.component import Component
from reservation.idempotence.server_keys import are_as_stored
from reservation.serialization.struct_types import camel_case, hints_of


class DeclaredKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the key of commands of one type is made.

    Attributes:
        category: the category that the key's stream is in.
        fields: the JSON names of the fields that make it, in their order.
        volatile: the JSON names of the fields in which a reissue may differ.
        by_function: whether the component's own code is needed; there are no fields then. The key
            is a function of the command, or was made differently before, or the command has former
            names or shapes, in which its fields may be others. Or one of its fields is neither a
            text nor a whole number, has a default that the data may leave out, or is changed by the
            command's class.
        within: whether the copies are in the command category itself.
        renamed: whether there may be reservations under a former name.
        kinds: the kind of JSON value, ``string`` or ``number``, that each field has to be.
    """

    category: str
    fields: tuple[str, ...]
    volatile: tuple[str, ...]
    by_function: bool
    within: bool
    renamed: bool = False
    kinds: tuple[str, ...] = ()


class Declaration(msgspec.Struct, frozen=True):
    """What a component declares of its messages.

    Attributes:
        keys: how the keys are made, by the type of the command, under each of its names.
        id: the JSON name of the field that holds the id of a command's entity.
        names: the former names of types, with the one that each has today.
    """

    keys: dict[str, DeclaredKey] = {}
    id: str = ""
    names: dict[str, str] = {}

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

    @property
    def renamed(self) -> list[str]:
        """The types of which there may be reservations under a former name."""
        return [type_ for type_, key in self.keys.items() if key.renamed]

    @property
    def renamed_within(self) -> list[str]:
        """Those of them that are reserved in the command category."""
        return [type_ for type_ in self.renamed if self.keys[type_].within]

    @classmethod
    def of(cls, component: Component) -> "Declaration":
        """Return what a component declares: the same that its consumers read."""
        reserve, initiate = component.volatile("reserve"), component.volatile("initiate")
        keys, server_keys = {}, component.server_keys
        for type_, reservation in component.reservations.items():
            leading = [] if reservation.entity is None else [reservation.entity]
            fields = [] if callable(reservation.key) else [*leading, *reservation.key]
            keys[type_] = _declared(
                reservation.command,
                fields,
                category=reservation.into or component.command_category,
                volatile=tuple(reserve[type_]),
                within=reservation.into is None,
                renamed=reservation.formerly is not None,
                changed=type_ not in server_keys,
            )
        for type_, initiation in component.initiations.items():
            keys[type_] = _declared(
                initiation.command,
                [component.id],
                category=component.name,
                volatile=tuple(initiate[type_]),
                within=False,
                renamed=False,
                changed=component.types.is_changed(type_),
            )
        own = {name: component.types[name].__name__ for name in component.types}
        former = {name: now for name, now in sorted(own.items()) if name != now}
        return cls(keys, camel_case(component.id), former)


# The kinds of JSON value that are parts of keys as they are. For other types, the component's own
# code makes the part of the key, as it does for the consumers.
_KINDS = {str: "string", int: "number"}


def _declared(
    command: type,
    fields: Sequence[str],
    *,
    category: str,
    volatile: tuple[str, ...],
    within: bool,
    renamed: bool,
    changed: bool,
) -> DeclaredKey:
    hints = hints_of(command)
    kinds = [_KINDS[hints[field]] for field in fields if hints[field] in _KINDS]
    by_function = (
        not fields
        or renamed
        or changed
        or len(kinds) < len(fields)
        or _may_lack(command, fields)
        or not are_as_stored(command, fields)
    )
    return DeclaredKey(
        category=category,
        fields=() if by_function else tuple(map(camel_case, fields)),
        kinds=() if by_function else tuple(kinds),
        volatile=volatile,
        by_function=by_function,
        within=within,
        renamed=renamed,
    )


def categories_of(component: Component) -> list[str]:
    """Return the categories in which a component's messages are: commands, copies and events."""
    return [component.command_category, *component.reservation_categories, component.name]


def _may_lack(command: type, fields: Sequence[str]) -> bool:
    """Return whether the data may leave out one of these fields, which the class then fills in."""
    missing = dataclasses.MISSING
    return any(
        field.name in fields and (field.default, field.default_factory) != (missing, missing)
        for field in dataclasses.fields(command)
    )
