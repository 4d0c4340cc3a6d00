"""The classes of a component's events, as far as the declaration tells them."""

import dataclasses
from typing import Any

from reservation.declaration.declared_messages import DeclaredMessages
from reservation.errors import MessageError
from reservation.handlers.checks.annotations import annotations, leaves_of
from reservation.messages.message import StoredMessage


class KnownEvents:
    """Decodes events whose class is declared, or is one that a handler is annotated to return.

    Attributes:
        handlers: how many handlers there were when the classes were found.
    """

    def __init__(self, declared: DeclaredMessages, handlers: int) -> None:
        """Find the classes.

        Args:
            declared: the component.
            handlers: how many handlers it has.
        """
        self.handlers = handlers
        self._declared = declared
        self._returned: dict[str, type | None] = {}
        functions: list[Any] = [one.handler for one in declared.initiations.values()]
        functions += list(declared.handlers.values())
        functions += [
            one.handler for of in declared.subscribed.values() for one in of.subscriptions.values()
        ]
        for function in functions:
            for leaf in leaves_of(annotations(function).get("return")):
                if isinstance(leaf, type) and dataclasses.is_dataclass(leaf):
                    name = declared.types.written(leaf).name
                    # Of two classes of one name, neither is sure to be that of an event.
                    known = self._returned.setdefault(name, leaf)
                    self._returned[name] = leaf if known is leaf else None

    def decode(self, event: StoredMessage) -> object:
        """Return an event as an instance of its class; as it is stored if that is not known.

        An event that does not have the shape of its class is returned as it is stored too.

        Args:
            event: the event.
        """
        try:
            if event.type in self._declared.types:
                return self._declared.types.decode(event)
            class_ = self._returned.get(event.type)
            return event if class_ is None else event.decode(class_)
        except MessageError:
            return event
