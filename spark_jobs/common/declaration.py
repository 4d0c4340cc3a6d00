"""A component's declaration of its keys, as text for the process that plans a read."""

from collections.abc import Sequence

import msgspec

from reservation.component import Component
from reservation.declaration.category import CategoryDeclarations
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.idempotence.server_keys import are_as_stored
from reservation.messages.registry import MessageTypes
from reservation.serialization.codec import camel_case
from reservation.serialization.fields import forms_of, hints_of, keys_of


class DeclaredKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """The composition of one command type's key.

    Attributes:
        category: the category that the key's stream is in.
        fields: the JSON names of the fields that make it, in their order.
        ignoring: the JSON names of the fields in which a reissue may differ.
        by_function: whether the component's own code is needed; there are no fields then. The key
            is a function of the command, or was made differently before, or the command has former
            names or shapes, in which its fields may be others. Or one of its fields is neither a
            text nor a whole number, has a default that the data may leave out, or is changed by the
            command's class.
        renamed: whether there may be reservations under a former name.
        kinds: the kind of JSON value, ``string`` or ``number``, that each field has to be.
    """

    category: str
    fields: tuple[str, ...]
    ignoring: tuple[str, ...]
    by_function: bool
    renamed: bool = False
    kinds: tuple[str, ...] = ()


class DeclaredSubscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """The handled messages of a type in a subscribed category.

    Attributes:
        id: the JSON name of the field that holds the id of the entity; None if a function gives it.
        from_position: the global position from which on they are handled.
        correlated: the component that their correlation has to lead back to; None if any does.
    """

    id: str | None = None
    from_position: int = 0
    correlated: str | None = None


# By category, and by the type of the message, under each of its names.
Subscriptions = dict[str, dict[str, DeclaredSubscription]]


class Declaration(msgspec.Struct, frozen=True):
    """A component's declaration of its messages.

    Attributes:
        keys: how the keys are made, by the type of the command, under each of its names.
        id: the JSON name of the field that holds the id of a command's entity.
        names: the former names of types, with the one that each has today.
        subscribed: which messages of other categories are handled; unset if there are none, so that
            the text of a component without subscriptions stays what it was.
        decoded: by category, the types of messages whose entity only the component's own code can
            tell: its id is neither a text nor a whole number as they stand in the data, or comes
            from a function; likewise unset.
    """

    keys: dict[str, DeclaredKey] = {}
    id: str = ""
    names: dict[str, str] = {}
    subscribed: Subscriptions | msgspec.UnsetType = msgspec.UNSET
    decoded: dict[str, list[str]] | msgspec.UnsetType = msgspec.UNSET

    def to_json(self) -> str:
        """Return it as text, for an option of the source."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> "Declaration":
        """Return what `to_json` made text of."""
        return msgspec.json.decode(text, type=cls)

    @property
    def subscriptions(self) -> Subscriptions:
        """The handled messages of other categories."""
        return {} if self.subscribed is msgspec.UNSET else self.subscribed

    @property
    def decoded_entities(self) -> dict[str, list[str]]:
        """By category, the types of messages whose entity the component's own code tells."""
        return {} if self.decoded is msgspec.UNSET else self.decoded

    @property
    def by_function(self) -> list[str]:
        """The types whose keys the component's own code makes."""
        return [type_ for type_, key in self.keys.items() if key.by_function]

    @property
    def renamed(self) -> list[str]:
        """The types of which there may be reservations under a former name."""
        return [type_ for type_, key in self.keys.items() if key.renamed]

    @classmethod
    def of(cls, component: Component) -> "Declaration":
        """Return what a component declares: the same that its consumers read."""
        table = declarations(component)
        keys = {}
        for type_, one in table.own.with_role(Role.RESERVE, Role.INITIATE).items():
            fields, category, renamed = [component.id], component.name, False
            if one.reservation is not None:
                key, entity = one.reservation.key, one.reservation.entity
                leading = [] if entity is None else [entity]
                fields = [] if callable(key) else [*leading, *key]
                category, renamed = one.reservation.into, one.reservation.former_key is not None
            keys[type_] = _declared(
                one.message,
                fields,
                category=category,
                ignoring=tuple(keys_of(one.message)[field] for field in one.ignoring),
                renamed=renamed,
                changed=table.types.is_upcast(type_),
            )
        own = {name: table.types[name].__name__ for name in table.types}
        former = {name: now for name, now in sorted(own.items()) if name != now}
        subscribed = _subscriptions(component) or msgspec.UNSET
        decoded = _decoded(component) or msgspec.UNSET
        return cls(keys, camel_case(component.id), former, subscribed, decoded)


# The kinds of JSON value that are parts of keys as they are. For other types, the component's own
# code makes the part of the key, as it does for the consumers.
_KINDS = {str: "string", int: "number"}


def _declared(
    command: type,
    fields: Sequence[str],
    *,
    category: str,
    ignoring: tuple[str, ...],
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
        fields=() if by_function else tuple(keys_of(command)[field] for field in fields),
        kinds=() if by_function else tuple(kinds),
        ignoring=ignoring,
        by_function=by_function,
        renamed=renamed,
    )


def _decoded(component: Component) -> dict[str, list[str]]:
    """Return, by category, the types of messages that have to be decoded for their entity."""
    declared = declarations(component)
    commands = declared.own_categories
    own = [
        name
        for name in sorted(declared.own.handled)
        if not _is_id_as_stored(declared.types, name, component.id)
        or keys_of(declared.types[name])[component.id] != camel_case(component.id)
    ]
    decoded = dict.fromkeys(commands, own)
    for category, of in sorted(declared.others.items()):
        decoded[category] = [
            name
            for name in sorted(of.handled)
            if not _is_id_as_stored(of.types, name, of.id_field(name))
        ]
    return {category: names for category, names in decoded.items() if names}


def _is_id_as_stored(types: MessageTypes, name: str, field: str | None) -> bool:
    """Return whether the id of a message's entity is sure to be what a field of its data shows."""
    if field is None or types.is_upcast(name):
        return False
    type_ = types[name]
    return (
        hints_of(type_).get(field) in _KINDS
        and not _may_lack(type_, [field])
        and are_as_stored(type_, [field])
    )


def _subscriptions(component: Component) -> Subscriptions:
    """Return which messages of other categories a component handles."""
    return {
        category: {
            type_: DeclaredSubscription(
                id=_id_key(of, type_),
                from_position=declared.from_position,
                correlated=component.name if declared.correlated else None,
            )
            for type_, declared in sorted(of.handled.items())
        }
        for category, of in sorted(declarations(component).others.items())
    }


def _id_key(of: CategoryDeclarations, type_: str) -> str | None:
    field = of.id_field(type_)
    return None if field is None else keys_of(of.types[type_])[field]


def categories_of(component: Component) -> list[str]:
    """Return the categories in which a component's messages are.

    These are its commands, their copies, its events, and the categories that it subscribes to.
    """
    return [*own_categories_of(component), *declarations(component).subscribed_categories]


def own_categories_of(component: Component) -> list[str]:
    """Return the component's own categories: its commands, their copies and its events."""
    return [*declarations(component).own_categories, component.name]


def _may_lack(command: type, fields: Sequence[str]) -> bool:
    """Return whether the data may leave out one of these fields, which the class then fills in."""
    return any(form.name in fields and not form.required for form in forms_of(command))
