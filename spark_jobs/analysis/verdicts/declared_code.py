"""A digest of the code of a component on which keys and meanings of commands depend.

With another one, the same messages can have other verdicts.
"""

import dataclasses
import hashlib
import json
from typing import Any

import msgspec

from reservation.component import Component
from reservation.messages.upcasting import code_of
from reservation.serialization.struct_types import twin


def code_of_component(component: Component) -> str:
    """Return the digest of what makes keys and meanings: fields, defaults, upcasters, functions.

    What functions call is not part of it.

    Args:
        component: the component.
    """
    parts = [
        *(_of_class(component, name) for name in sorted(component.initiations)),
        *(
            [*_of_class(component, name), _of_key(one.key), _of_key(one.formerly)]
            for name, one in sorted(component.reservations.items())
        ),
    ]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _of_class(component: Component, name: str) -> list[Any]:
    # Any: a class that is known only now.
    type_: Any = component.types[name]
    factories = [
        code_of(field.default_factory)
        for field in dataclasses.fields(type_)
        if field.default_factory is not dataclasses.MISSING
    ]
    return [
        name,
        msgspec.json.schema(twin(type_), schema_hook=lambda other: {"title": str(other)}),
        factories,
        code_of(vars(type_).get("__post_init__")),
        component.types.upcasters(name),
    ]


def _of_key(key: object) -> object:
    return code_of(key) if callable(key) else key
