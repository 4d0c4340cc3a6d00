"""A digest of the code of a component on which keys and meanings of commands depend.

With another one, the same messages can have other verdicts.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import msgspec

from reservation.component import Component
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.messages.registry import MessageTypes
from reservation.messages.upcasting import code_of
from reservation.serialization.fields import adapter_of
from reservation.serialization.struct_types import twin
from spark_jobs.common.declaration import Declaration


def code_of_component(component: Component) -> str:
    """Return the digest of what makes keys and meanings: fields, defaults, upcasters, functions.

    What functions call is not part of it.
    """
    declared = declarations(component)
    initiated = declared.own.with_role(Role.INITIATE)
    parts = [
        *(_of_class(declared.types, name) for name in sorted(initiated)),
        *(
            [
                *_of_class(declared.types, name),
                _of_key(one.key),
                _of_key(one.former_key),
            ]
            for name, one in sorted(declared.own.reservations.items())
        ),
        *_of_entities(component),
    ]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _of_entities(component: Component) -> Iterator[list[Any]]:
    """Yield the code that finds a message's entity, where that is not a value of its data."""
    declared = declarations(component)
    for category, names in Declaration.of(component).decoded_entities.items():
        subscribed = declared.others.get(category)
        for name in names:
            id_ = subscribed[name].id if subscribed else None
            types = subscribed.types if subscribed else declared.types
            yield [category, *_of_class(types, name), _of_key(id_)]


def _of_class(types: MessageTypes, name: str) -> list[Any]:
    # Any: a class that is known only now.
    type_: Any = types[name]
    return [
        name,
        msgspec.json.schema(twin(type_), schema_hook=lambda other: {"title": str(other)}),
        *adapter_of(type_).code(type_, code_of),
        types.upcasters(name),
    ]


def _of_key(key: object) -> object:
    return code_of(key) if callable(key) else key
