"""The fields of a class of messages or entities, of whichever kind the class is.

Nothing outside `reservation.serialization` asks for the kind.
"""

import functools
import typing
from collections.abc import Mapping
from typing import Any

from reservation.serialization.adapters.adapter import ClassAdapter, FieldForm, UnfitClassError
from reservation.serialization.adapters.attrs_classes import AttrsAdapter
from reservation.serialization.adapters.dataclasses import DataclassAdapter
from reservation.serialization.adapters.models import ModelAdapter
from reservation.serialization.adapters.structs import StructAdapter

# Any: classes and type hints of any component.

_ADAPTERS: tuple[ClassAdapter, ...] = (
    DataclassAdapter(),
    StructAdapter(),
    AttrsAdapter(),
    ModelAdapter(),
)


class _Adapters(dict[type, ClassAdapter | None]):
    """The adapter of each class, chosen once; a dict is the fastest to look up."""

    def __missing__(self, class_: type) -> ClassAdapter | None:
        found = next((one for one in _ADAPTERS if one.recognizes(class_)), None)
        self[class_] = found
        return found


_adapters = _Adapters()


def is_message(value: object) -> bool:
    """Return whether a value is an instance of a class with fields that are stored."""
    return _adapters[type(value)] is not None


def is_message_class(class_: object) -> bool:
    """Return whether instances of a class have fields that are stored."""
    return isinstance(class_, type) and _adapters[class_] is not None


def adapter_of(class_: type) -> ClassAdapter:
    """Return the adapter of a class; `UnfitClassError` if it is of no known kind."""
    adapter = _adapters[class_]
    if adapter is None:
        raise UnfitClassError(
            f"{class_.__name__} is not a dataclass; decorate it with @dataclass, or make it a "
            f"msgspec.Struct, an attrs class or a Pydantic model"
        )
    return adapter


@functools.cache
def forms_of(class_: Any) -> tuple[FieldForm, ...]:
    """Return the fields of a class, and their forms in JSON; see `ClassAdapter.forms`."""
    return tuple(adapter_of(class_).forms(class_))


@functools.cache
def names_of(class_: Any) -> tuple[str, ...]:
    """Return the names of the fields of a class."""
    return tuple(form.name for form in forms_of(class_))


@functools.cache
def hints_of(class_: Any) -> dict[str, Any]:
    """Return the type hint of each field of a class."""
    return {form.name: form.hint for form in forms_of(class_)}


@functools.cache
def keys_of(class_: Any) -> Mapping[str, str]:
    """Return the name in JSON of each field of a class."""
    return {form.name: form.key for form in forms_of(class_)}


def state_of(instance: object) -> dict[str, Any]:
    """Return all that is set on an instance of a class with fields, be it stored or not."""
    class_: Any = type(instance)
    return adapter_of(class_).state(instance, names_of(class_))


def classes_in(hint: Any) -> set[Any]:
    """Return the classes with fields that a type hint names."""
    if is_message_class(hint):
        return {hint}
    return {class_ for part in typing.get_args(hint) for class_ in classes_in(part)}
