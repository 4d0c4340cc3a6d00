"""Tests of upcasters: whether they do the same again, and leave what is written today."""

from collections.abc import Mapping
from typing import Any, TypeVar, overload

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import DeclarationError
from reservation.messages.comparison import same_content
from reservation.serialization import codec
from reservation.serialization.json_limits import encoder
from reservation.testing.determinism import NotDeterministicError
from reservation.testing.messages import as_stored

T = TypeVar("T")


@overload
def check_upcast(
    component: Component, type_: type[T], data: Mapping[str, Any], *, version: int | None = None
) -> T: ...
@overload
def check_upcast(
    component: Component, type_: str, data: Mapping[str, Any], *, version: int | None = None
) -> Any: ...
def check_upcast(
    component: Component,
    type_: type[Any] | str,
    data: Mapping[str, Any],
    *,
    version: int | None = None,
) -> Any:
    """Decode a stored object twice, through the upcasters of its class, and compare the results.

    What comes out is then encoded and decoded once more, as a message that is written today: its
    upcasters must leave it as it is.

    Args:
        component: the declaration with the upcasters.
        type_: the class, or the name that the message is stored under, such as a former one.
        data: the JSON object as it is stored, with camelCase keys, left as it is.
        version: the version in the metadata; None for a message without one.

    Returns:
        The message, as an instance of its class.

    Raises:
        NotDeterministicError: the results differ, or a message of today is upcast again.
        DeclarationError: the component does not declare the type.
        DecodeError: an upcaster fails, or the result does not have the shape of the class.
    """
    declared = declarations(component)
    name = type_ if isinstance(type_, str) else type_.__name__
    if name not in declared.types:
        raise DeclarationError(f"{component.name} declares no message of the type {name}")
    class_ = declared.types[name]
    text = encoder.encode(data).decode()
    former = as_stored(component.name, name, text, version)
    first, second = component.decode(former), component.decode(former)
    if not same_content(first, second):
        raise NotDeterministicError(
            f"The upcasters of {class_.__name__} made another message the second time; let them "
            f"depend on nothing but the object that they are given"
        )
    written = declared.types.written(class_)
    today = as_stored(component.name, written.name, codec.encode(first), written.version)
    if not same_content(first, component.decode(today)):
        raise NotDeterministicError(
            f"The upcasters of {class_.__name__} change a message that has the current shape; "
            f"let when= recognize the former shape alone"
        )
    return first
