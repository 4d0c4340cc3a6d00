"""The message types that a component knows: from the name in the store to a dataclass, and back.

A name in a message is looked up here and nowhere else, so nothing is imported because a message
names it.
"""

import dataclasses
from collections.abc import Iterator

from reservation.errors import DeclarationError
from reservation.serialization import codec


class MessageTypes:
    """Dataclasses by the type name that messages of them carry, which is the class's name."""

    def __init__(self) -> None:
        self._types: dict[str, type] = {}

    def add(self, type_: type) -> str:
        """Register a dataclass and return the type name of its messages.

        Args:
            type_: the dataclass.

        Raises:
            DeclarationError: it is not a dataclass, a field has no form in JSON, or another class
                has the same name.
        """
        name = type_.__name__
        if not dataclasses.is_dataclass(type_):
            raise DeclarationError(f"{name} is not a dataclass; decorate it with @dataclass")
        try:
            codec.prepare(type_)
        except (TypeError, ValueError, NameError, RecursionError) as error:
            raise DeclarationError(f"{name} cannot be a message: {error}") from error
        if self._types.setdefault(name, type_) is not type_:
            raise DeclarationError(
                f"Two classes are named {name}: in {self._types[name].__module__} and in "
                f"{type_.__module__}; the name is the message type, so it must be one class's"
            )
        return name

    def __getitem__(self, name: str) -> type:
        """Return the dataclass of a type name; KeyError if there is none."""
        return self._types[name]

    def __contains__(self, name: str) -> bool:
        return name in self._types

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)
