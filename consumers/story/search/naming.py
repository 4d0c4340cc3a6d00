"""Which streams a command may be reserved in, and which fields of it hold its key.

A component that is given declares it. Without one, the copies that the store has of other commands
of the same type show it: the parts of their streams' ids are values of fields of their commands.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice, product
from typing import Any

import msgspec

from consumers.story.search.reading import Reading
from reservation.component import Component
from reservation.errors import IdempotenceKeyError
from reservation.idempotence.key import key_part
from reservation.messages import stream_name as names
from reservation.messages.message import StoredMessage

# Where the fields of several copies allow several names, so many are looked for.
_MOST_NAMES = 16


@dataclass(slots=True)
class Naming:
    """How the commands of a store are reserved.

    Attributes:
        reading: the store.
        components: those that declare it.
    """

    reading: Reading
    components: Sequence[Component[Any]] = ()
    _learned: dict[str, list["_Rule"]] = field(default_factory=dict)

    def declared_for(self, command: StoredMessage) -> Component[Any] | None:
        """Return the component that reserves commands like this one, if it is among those given."""
        category = names.category(command.stream_name)
        for component in self.components:
            if component.command_category == category and command.type in (
                component.reservations.keys() | component.initiations.keys()
            ):
                return component
        return None

    def key_streams(self, command: StoredMessage) -> list[str]:
        """Return the streams that a command may be reserved in, a former one first."""
        component = self.declared_for(command)
        if component is not None:
            declared = component.reservations.get(command.type)
            if declared is None:
                return []
            try:
                decoded = component.decode(command)
                former = declared.former_stream(decoded, command.stream_name)
                name = declared.stream_name(decoded, command.stream_name)
            except Exception:  # noqa: BLE001  a class or a key function can raise anything
                return []
            return [former, name] if former is not None else [name]
        if command.type not in self._learned:
            self._learned[command.type] = self._learn(command.type)
        made = (rule.names(command) for rule in self._learned[command.type])
        return list(dict.fromkeys(name for found in made for name in found))

    def _learn(self, type_name: str) -> list["_Rule"]:
        rules: dict[tuple[str, bool, int], _Rule] = {}
        for category, copy, sent_to, data in self.reading.reservations_of_type(type_name):
            within = names.category(sent_to) == category
            if within and not copy.startswith(sent_to):
                continue
            parts = key_of(copy, sent_to)
            fields = texts_of(data)
            sources = [{name for name, text in fields.items() if text == part} for part in parts]
            rule = rules.setdefault(
                (category, within, len(parts)), _Rule(category, within, [set(fields)] * len(parts))
            )
            if not rule.narrow(sources):
                del rules[category, within, len(parts)]
        return list(rules.values())


@dataclass(slots=True)
class _Rule:
    """How the copies in one category are named: by which fields."""

    category: str
    within: bool
    sources: list[set[str]]

    def narrow(self, sources: Sequence[set[str]]) -> bool:
        """Keep the fields that fit one more copy, too; return whether there are any for each."""
        self.sources = [
            known & more if known & more else more
            for known, more in zip(self.sources, sources, strict=True)
        ]
        return all(self.sources)

    def names(self, command: StoredMessage) -> list[str]:
        fields = texts_of(command.data)
        values = [
            list(dict.fromkeys(fields[name] for name in sorted(source) if name in fields))
            for source in self.sources
        ]
        made = []
        for parts in islice(product(*values), _MOST_NAMES):
            joined = names.COMPOUND_SEPARATOR.join(parts)
            if not self.within:
                made.append(f"{self.category}{names.ID_SEPARATOR}{joined}")
                continue
            is_category = names.is_category(command.stream_name)
            separator = names.ID_SEPARATOR if is_category else names.COMPOUND_SEPARATOR
            made.append(f"{command.stream_name}{separator}{joined}")
        return made


def key_of(copy: str, sent_to: str) -> list[str]:
    """Return the parts of the id of a copy's stream that name its key.

    Args:
        copy: the stream of the copy.
        sent_to: the stream of its command, whose ids lead the name where both are in one category.
    """
    if copy.startswith(sent_to) and names.category(copy) == names.category(sent_to):
        rest = copy[len(sent_to) + 1 :]
    else:
        rest = names.identifier(copy) or ""
    return rest.split(names.COMPOUND_SEPARATOR)


def texts_of(data: str | None) -> dict[str, str]:
    """Return the fields of a message whose values can be parts of a key, as texts."""
    texts = {}
    for name, value in fields_of(data).items():
        try:
            texts[name] = key_part(value, name)
        except IdempotenceKeyError:
            continue
    return texts


def fields_of(data: str | None) -> Mapping[str, Any]:
    """Return the object in a JSON text; an empty one for anything else."""
    try:
        decoded = _decoder.decode(data or "{}")
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def holds(data: str | None, parts: Sequence[str], fields: Collection[str]) -> bool:
    """Return whether each part of a key is the value of a field of its own.

    Args:
        data: the data of a message.
        parts: the parts.
        fields: the fields that may hold them.
    """
    texts = texts_of(data)
    values = Counter(texts[name] for name in fields if name in texts)
    return not Counter(parts) - values


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=Decimal)
