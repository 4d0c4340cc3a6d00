"""Idempotence keys that the server takes from a command, so that its payload is not transferred.

A key of named fields can be read where the command is stored. The server gets rules for each
command type: the fields to join, and a pattern for their values. Commands that do not match the
pattern are read with their data, and their key is taken by `reservation.idempotence.key`. Both name
the same stream.
"""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from enum import Enum
from types import MemberDescriptorType
from typing import Any
from uuid import UUID

from reservation.idempotence.reserve import Reservation
from reservation.messages.message import StoredMessage
from reservation.messages.stream_name import CONTROL
from reservation.postgres.queries import load_queries
from reservation.serialization.fields import adapter_of, forms_of, hints_of, keys_of
from reservation.store.category_part import CategoryPart
from reservation.store.statements import Statement

_QUERIES = load_queries("reservation.idempotence")

# Commands, and for each the stream that its key names, if the server has taken that.
Commands = tuple[list[StoredMessage], list[str | None]]

# How many fields, the entity's among them, the server joins.
MOST_FIELDS = 4

# What the server takes a part of a key from, by the field's type: the kind of JSON value and the
# pattern of its text. Each pattern is narrower than what may be part of a key, and has only texts
# that `key_part` would make of the value too.
_KINDS: dict[Any, tuple[str, str]] = {
    str: ("string", f"[^+{CONTROL}]+"),
    int: ("number", "-?[0-9]{1,18}"),
    UUID: ("string", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    date: ("string", "[1-9][0-9]{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"),
    Decimal: ("number", "(?:0|-?[1-9][0-9]{0,17}|-?(?:0|[1-9][0-9]{0,17})\\.[0-9]{0,17}[1-9])"),
}


# A value of an enum that stands for itself in a pattern.
_WORD = re.compile("[A-Za-z0-9_ ]+")


def server_rules(reservations: Mapping[str, Reservation]) -> str:
    """Return, as JSON, the rules for those command types whose keys the server can take."""
    rules = []
    for name, declared in reservations.items():
        if callable(declared.key) or declared.former_key is not None:
            continue
        fields = [declared.entity, *declared.key] if declared.entity else list(declared.key)
        if not are_as_stored(declared.command, fields):
            continue
        hints = hints_of(declared.command)
        kinds = [known for field in fields if (known := _kind(hints[field])) is not None]
        if len(kinds) < len(fields) or len(fields) > MOST_FIELDS:
            continue
        rule = {"type": name, "into": declared.into}
        patterns = []
        for n, (field, (kind, pattern)) in enumerate(zip(fields, kinds, strict=True), start=1):
            rule[f"field{n}"] = keys_of(declared.command)[field]
            rule[f"kind{n}"] = kind
            patterns.append(pattern)
        rules.append(rule | {"pattern": "^[^-]+-" + r"\+".join(patterns) + "$"})
    return json.dumps(rules, ensure_ascii=False)


def _kind(hint: Any) -> tuple[str, str] | None:
    """Return the kind and the pattern of a key's part of a type, None if the server has none."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        values = [member.value for member in hint]
        if values and all(type(value) is str and _WORD.fullmatch(value) for value in values):
            return "string", f"(?:{'|'.join(values)})"
        return None
    return _KINDS.get(hint) if isinstance(hint, type) else None


def are_as_stored(command: type, fields: Sequence[str]) -> bool:
    """Return whether the fields of a decoded command are sure to hold the values in its data.

    They need not if the class checks or changes them, or has descriptors of its own for them.
    """
    watches = inspect.getattr_static(command, "__getattribute__") is not object.__getattribute__
    if watches or not adapter_of(command).sets_as_stored(command, fields):
        return False
    if any(form.aliases for form in forms_of(command) if form.name in fields):
        return False  # it need not stand under its own name
    found = [inspect.getattr_static(command, field, None) for field in fields]
    return all(
        isinstance(member, MemberDescriptorType) or not inspect.isdatadescriptor(member)
        for member in found
    )


def read_commands(
    category: str, part: CategoryPart, limit: int, rules: str, max_bytes: int | None = None
) -> Statement[Commands]:
    """Return the statement that reads a batch of commands that are to be reserved."""
    parameters = [*part.parameters(category, limit), rules, max_bytes]
    return Statement(
        _QUERIES["read_commands"],
        parameters,
        lambda rows: ([StoredMessage(*row[:-1]) for row in rows], [row[-1] for row in rows]),
        repeated=True,
    )
