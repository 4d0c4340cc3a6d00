"""The type of messages: instances of any dataclass."""

from dataclasses import Field
from typing import Any, ClassVar, Protocol


class DataclassInstance(Protocol):
    """An instance of any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
