"""A process's declaration: the messages it reads and writes, and how it recognizes repeats.

Each member of a group stores it, so that a process with another declaration can see whether both
may run at once. Types stand under the names that they have in the store, and keys are described by
the names of their fields in JSON, so that a renamed class is no change.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from reservation.component import Component
from reservation.declaration.category import CategoryDeclarations
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.handlers.checks.returned_checks import returned_classes
from reservation.idempotence.followed import Followed
from reservation.idempotence.key import KeyFunction
from reservation.idempotence.strategy import Strategy
from reservation.messages.pseudo_event import PSEUDO_EVENT
from reservation.messages.stream_name import COMPOUND_SEPARATOR
from reservation.serialization.fields import forms_of, keys_of


class HandledType(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message type that a process handles.

    Attributes:
        keys: fingerprints of the key: the one that it goes by, and a former one under which it
            looks too. A function has no fingerprint of its own: whether it was changed is seen in
            the reservations (`reservation.maintenance.reservation_names`).
        names: the types under which such messages are read.
        written: the one of them under which they are sent today; empty of messages of others.
    """

    keys: tuple[str, ...]
    names: tuple[str, ...]
    written: str = ""

    def agrees_with(self, other: "HandledType") -> bool:
        """Return whether each of two processes finds what the other has handled."""
        return self.keys[0] in other.keys and other.keys[0] in self.keys


class Shape(msgspec.Struct, frozen=True, omit_defaults=True):
    """The shape in which events of one type are read or written.

    Attributes:
        version: the one that is written, or the highest that is read; None if none is, or if that
            does not matter.
        fields: the fields that are written, or that an event must have to be read; in JSON.
        aliases: of such a field, the other names under which it is read.
    """

    version: int | None = None
    fields: tuple[str, ...] = ()
    aliases: dict[str, tuple[str, ...]] = {}

    def lacking(self, written: "Shape") -> list[str]:
        """Return the fields that an event of another shape lacks to be read."""
        there = set(written.fields)
        return sorted(
            field
            for field in self.fields
            if there.isdisjoint((field, *self.aliases.get(field, ())))
        )


class ProcessDeclaration(msgspec.Struct, frozen=True):
    """One process's declaration.

    Attributes:
        commands: the commands that it reads, by type.
        ignored: the types that it skips.
        events: the events that it reads in its entity's stream, by type; None without an entity.
        writes: the events that its handlers may write, by type.
        subscriptions: of each category that it subscribes to, the messages that it handles, by
            type.
        series: the shape of each series, by name.
    """

    commands: dict[str, HandledType]
    ignored: tuple[str, ...]
    events: dict[str, Shape] | None
    writes: dict[str, Shape]
    subscriptions: dict[str, dict[str, HandledType]]
    series: dict[str, tuple[str, str, str]] = {}

    def to_json(self) -> str:
        """Return it as JSON text."""
        return msgspec.json.encode(self, order="sorted").decode()

    @classmethod
    def from_json(cls, text: str) -> "ProcessDeclaration":
        """Return what `to_json` made text of."""
        return msgspec.json.decode(text, type=cls)

    @classmethod
    def of(cls, component: Component[Any]) -> "ProcessDeclaration":
        """Return what a process declares that runs a component."""
        declared = declarations(component)
        return cls(
            commands=_commands(component),
            ignored=tuple(sorted(declared.own.ignored)),
            events=_read(component) if declared.loads_entities else None,
            writes=_written(component) if declared.loads_entities else {},
            subscriptions={name: _subscribed(one) for name, one in declared.others.items()},
            series={name: one.shape for name, one in declared.series.items()},
        )


def _commands(component: Component[Any]) -> dict[str, HandledType]:
    declared = declarations(component)
    types = declared.types
    return {
        name: HandledType(tuple(_keys(component, name)), one.names, types.written(one.message).name)
        for name, one in declared.own.handled.items()
    }


def _keys(component: Component[Any], name: str) -> Iterator[str]:
    declared = declarations(component)
    command = declared.own[name].message
    once = _strategy(command, declared.own[name].once)
    reservation = declared.own[name].reservation
    if reservation is not None:
        leading = () if reservation.entity is None else (reservation.entity,)
        yield _joined(f"{reservation.into}-{_form(command, reservation.key, leading)}", once)
        if reservation.former_key is not None:
            yield _joined(f"{reservation.into}-{_form(command, reservation.former_key)}", once)
    elif declared.own[name].role is Role.INITIATE:
        yield f"{component.name}-{keys_of(command)[component.id]}"
    else:
        yield _joined(once)


def _subscribed(declared: CategoryDeclarations) -> dict[str, HandledType]:
    subscriptions = {}
    for name, one in declared.handled.items():
        id_ = ""  # a read model has no entities
        if not declared.is_read:
            id_ = _form(one.message, one.id if callable(one.id) else (one.id,))
        handled = _joined(
            f"{declared.component}-{id_}",
            _strategy(one.message, one.once),
            f"from {one.from_position}" if one.from_position else "",
            "correlated" if one.correlated else "",
        )
        subscriptions[name] = HandledType((handled,), declared.types.names_of(one.message))
    return subscriptions


def _strategy(message: type, strategy: Strategy | None) -> str:
    if strategy is None or isinstance(strategy, Followed):  # which is the default
        return ""
    key = getattr(strategy, "key", None)
    return f"{type(strategy).__name__}({'' if key is None else _form(message, key)})"


def _form(message: type, key: tuple[str, ...] | KeyFunction, leading: tuple[str, ...] = ()) -> str:
    keys = keys_of(message)
    fields = ["a function"] if callable(key) else [keys[field] for field in key]
    return COMPOUND_SEPARATOR.join((*(keys[field] for field in leading), *fields))


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts)) or "nothing"


def _read(component: Component[Any]) -> dict[str, Shape]:
    declared = declarations(component)
    types = declared.types
    read = dict.fromkeys((PSEUDO_EVENT, *declared.passed), Shape())
    for name in declared.projected:
        if types.is_upcast(name):  # what its upcasters make of a former shape is not known
            read[name] = Shape(types.written(types[name]).version)
        else:
            required = [form for form in forms_of(types[name]) if form.required]
            read[name] = Shape(
                fields=tuple(form.key for form in required),
                aliases={form.key: form.aliases for form in required if form.aliases},
            )
    return read


def _written(component: Component[Any]) -> dict[str, Shape]:
    """Return the events that handlers may write.

    They are those that the handlers are annotated to return. A handler without such an annotation
    may write every event that is declared.
    """
    table = declarations(component)
    handlers = [one.handler for declared in table.all() for one in declared.handled.values()]
    events = {*table.own.with_role(Role.EVENT), *table.projected}
    written: set[type] = set()
    for handler in handlers:
        classes = returned_classes(handler)
        written.update((table.types[n] for n in events) if classes is None else classes)
    shapes = {}
    for class_ in written:
        name, version = declarations(component).types.written(class_)
        shapes[name] = Shape(version, tuple(keys_of(class_).values()))
    return shapes
