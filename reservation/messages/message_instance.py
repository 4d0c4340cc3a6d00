"""The type of messages: instances of any kind of class that has an adapter."""

from dataclasses import Field
from typing import Any, ClassVar, Protocol


class _OfDataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


class _OfStruct(Protocol):
    __struct_fields__: ClassVar[tuple[str, ...]]


class _OfAttrsClass(Protocol):
    __attrs_attrs__: ClassVar[Any]  # as the plugins of mypy and pyright give it


class _OfModel(Protocol):
    __pydantic_fields_set__: set[str]


MessageInstance = _OfDataclass | _OfStruct | _OfAttrsClass | _OfModel
