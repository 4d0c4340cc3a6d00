"""A tally of stored messages: those that a declaration knows, and those it cannot read.

A tally is of some messages of one category. Tallies are added, so that a category can be divided
among processes. Nothing of a message's values is kept, but names of types, fields and streams.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AnySet
from enum import StrEnum
from typing import Any

import msgspec

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import DecodeError, ReservationError
from reservation.maintenance.reservation_names import is_misnamed, is_reservation
from reservation.messages.message import StoredMessage
from reservation.messages.pseudo_event import PSEUDO_EVENT
from reservation.serialization import codec
from reservation.serialization.fields import forms_of

# A store with more types, or a type with more fields, than anybody declares is counted in sum.
MOST_TYPES = 1_000
MOST_FIELDS = 100


class CategoryRole(StrEnum):
    """A category's role in a component."""

    COMMANDS = "commands"
    RESERVATIONS = "reservations"
    EVENTS = "events"
    SUBSCRIBED = "subscribed"


class Knowledge(StrEnum):
    """A component's knowledge of a type of messages in a category."""

    DECLARED = "declared"
    IGNORED = "ignored"
    UNKNOWN = "unknown"


class TypeTally(msgspec.Struct):
    """The tally of one type.

    Attributes:
        messages: how many messages there were.
        unreadable: how many of them cannot be decoded, or have no usable key.
        first: the global position of the first of those.
        problem: what is wrong with it, without its values.
        missing: for fields of the class that some data lacks, how many messages lack each.
        added: for keys of the data that the class does not have, how many messages have each.
    """

    messages: int = 0
    unreadable: int = 0
    first: int | None = None
    problem: str | None = None
    missing: dict[str, int] = msgspec.field(default_factory=dict)
    added: dict[str, int] = msgspec.field(default_factory=dict)


class Tally(msgspec.Struct):
    """The tally of some messages of a category.

    Attributes:
        types: by type.
        others: how many messages are of further types, where there are too many types to name.
        misnamed: how many reservations have another name than the declaration gives.
        misnamed_first: the global position of the first of them.
        misnamed_stream: its stream.
    """

    types: dict[str, TypeTally] = msgspec.field(default_factory=dict)
    others: int = 0
    misnamed: int = 0
    misnamed_first: int | None = None
    misnamed_stream: str | None = None

    def to_json(self) -> str:
        """Return it as JSON text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> "Tally":
        """Return what `to_json` made text of."""
        return msgspec.json.decode(text, type=cls)

    @property
    def messages(self) -> int:
        """The number of messages."""
        return self.others + sum(tally.messages for tally in self.types.values())

    def of_type(self, name: str) -> TypeTally | None:
        """Return where a message of a type is counted; None if there are too many types."""
        if name not in self.types and len(self.types) >= MOST_TYPES:
            return None
        return self.types.setdefault(name, TypeTally())

    def add(self, other: "Tally") -> None:
        """Add another tally of the same category."""
        self.others += other.others
        for name, theirs in other.types.items():
            mine = self.of_type(name)
            if mine is None:
                self.others += theirs.messages
                continue
            mine.messages += theirs.messages
            mine.unreadable += theirs.unreadable
            if _is_first(theirs.first, mine.first):
                mine.first, mine.problem = theirs.first, theirs.problem
            for counts, added in ((mine.missing, theirs.missing), (mine.added, theirs.added)):
                for key, number in added.items():
                    _count(counts, key, number)
        self.misnamed += other.misnamed
        if _is_first(other.misnamed_first, self.misnamed_first):
            self.misnamed_first = other.misnamed_first
            self.misnamed_stream = other.misnamed_stream


def declared_categories(component: Component[Any]) -> dict[str, CategoryRole]:
    """Return the categories whose messages a component reads, and what each is for."""
    declared = declarations(component)
    categories: dict[str, CategoryRole] = {}
    if declared.own.handled or not declared.others:
        categories[declared.command_category] = CategoryRole.COMMANDS
    categories |= dict.fromkeys(declared.reservation_categories, CategoryRole.RESERVATIONS)
    if declared.loads_entities:
        categories[component.name] = CategoryRole.EVENTS
    return categories | dict.fromkeys(declared.subscribed_categories, CategoryRole.SUBSCRIBED)


def declared_types(
    component: Component[Any], category: str, role: CategoryRole
) -> Mapping[str, type]:
    """Return the types of messages that a component reads in a category, with their classes."""
    declared = declarations(component)
    if role is CategoryRole.SUBSCRIBED:
        subscribed = declared.others[category]
        return {name: subscribed.types[name] for name in sorted(subscribed.handled)}
    if role is CategoryRole.EVENTS:
        names: Iterable[str] = declared.projected
    elif role is CategoryRole.RESERVATIONS:
        names = [name for name, to in declared.own.reservations.items() if to.into == category]
    else:
        names = declared.own.handled
    return {name: declared.types[name] for name in sorted(names)}


class Inspector:
    """Takes tallies of the messages of one category."""

    def __init__(self, component: Component[Any], category: str) -> None:
        self._component = component
        self._declared = declarations(component).of(category)
        self.role = declared_categories(component)[category]
        self._types = declared_types(component, category, self.role)
        self._keys_of = {
            name: [form.keys for form in forms_of(class_)] for name, class_ in self._types.items()
        }

    def knows(self, name: str) -> Knowledge:
        """Return what is declared about a type."""
        declared = declarations(self._component)
        if name in self._types:
            return Knowledge.DECLARED
        if self.role is CategoryRole.SUBSCRIBED:  # what no handler is declared for is passed
            return Knowledge.IGNORED
        if name in declared.own.ignored or name == PSEUDO_EVENT:
            return Knowledge.IGNORED
        if self.role is CategoryRole.EVENTS and declared.projection.knows(name):
            return Knowledge.DECLARED
        return Knowledge.UNKNOWN

    def tally(self, messages: Iterable[StoredMessage]) -> Tally:
        """Return what is found of some messages of the category."""
        tally = Tally()
        for message in messages:
            found = tally.of_type(message.type)
            if found is None:
                tally.others += 1
                continue
            found.messages += 1
            if self._is_read(message):
                self._compare_fields(found, message)
                self._read(tally, found, message)
        return tally

    def _is_read(self, message: StoredMessage) -> bool:
        """Return whether a message is decoded by the component."""
        if self.role is CategoryRole.SUBSCRIBED:
            return not self._declared.passes(message)
        return message.type in self._types

    def _compare_fields(self, found: TypeTally, message: StoredMessage) -> None:
        keys, fields = self._keys(message), self._keys_of[message.type]
        if keys is None:
            return
        for of_field in fields:
            if keys.isdisjoint(of_field):
                _count(found.missing, of_field[0])
        for key in keys - {key for of_field in fields for key in of_field}:
            _count(found.added, key)

    def _keys(self, message: StoredMessage) -> AnySet[str] | None:
        """Return the keys of a message's data, after upcasters; None if it is no object."""
        types = self._declared.types
        try:
            if types.is_upcast(message.type):
                upcast = types.chain(types[message.type]).upcast(message)
                if upcast is not None:
                    return upcast.keys()
            return msgspec.json.decode(message.data or "", type=dict[str, msgspec.Raw]).keys()
        except (msgspec.MsgspecError, RecursionError, DecodeError):
            return None  # it cannot be decoded either

    def _read(self, tally: Tally, found: TypeTally, message: StoredMessage) -> None:
        try:
            command = self._component.decode(message)
            if self.role is not CategoryRole.EVENTS and not self._declared.is_read:
                self._declared.entity_stream(command)
                self._name(tally, message, command)
        except Exception as error:  # noqa: BLE001  a class or a key function can raise anything
            found.unreadable += 1
            if _is_first(message.global_position, found.first):
                found.first, found.problem = message.global_position, _told(message, error)

    def _name(self, tally: Tally, message: StoredMessage, command: object) -> None:
        """Look at the name that a command is reserved under, or would be."""
        declared = self._declared[message.type].reservation
        if declared is None:
            return
        if not is_reservation(declared, message):
            declared.stream_name(command)
        elif is_misnamed(declared, message, command):
            tally.misnamed += 1
            if _is_first(message.global_position, tally.misnamed_first):
                tally.misnamed_first = message.global_position
                tally.misnamed_stream = message.stream_name


def _told(message: StoredMessage, error: Exception) -> str:
    """Return what is wrong with a message, without anything of its values."""
    if isinstance(error, DecodeError):
        cause = error.__cause__
        if isinstance(cause, Exception):
            return codec.explain(cause)
        return str(error).removeprefix(f"Cannot decode {message}: ")
    if isinstance(error, ReservationError):
        return "its key, or its entity's id, cannot name a stream"
    return codec.explain(error)


def _is_first(one: int | None, other: int | None) -> bool:
    return one is not None and (other is None or one < other)


def _count(counts: dict[str, int], key: str, number: int = 1) -> None:
    if key in counts or len(counts) < MOST_FIELDS:
        counts[key] = counts.get(key, 0) + number
