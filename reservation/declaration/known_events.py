"""The classes of a component's events, as far as the declaration says them."""

from typing import cast
from weakref import WeakKeyDictionary

from reservation.declaration.table import Declarations
from reservation.errors import MessageError
from reservation.handlers.checks.annotations import annotations, leaves_of
from reservation.messages.message import StoredMessage
from reservation.messages.message_instance import MessageInstance
from reservation.serialization.fields import is_message_class


class KnownEvents:
    """Decodes events whose class is declared, or is one that a handler is annotated to return."""

    def __init__(self, declared: Declarations) -> None:
        self._types = declared.types
        self._returned: dict[str, type | None] = {}
        for category in declared.all():
            for one in category.handled.values():
                self._add(annotations(one.handler).get("return"))

    def _add(self, hint: object) -> None:
        for leaf in leaves_of(hint):
            if is_message_class(leaf):
                name = self._types.written(leaf).name
                # Of two classes of one name, neither is sure to be that of an event.
                known = self._returned.setdefault(name, leaf)
                self._returned[name] = leaf if known is leaf else None

    def decode(self, event: StoredMessage) -> MessageInstance | StoredMessage:
        """Return an event as an instance of its class; as it is stored if that is not known.

        An event that does not have the shape of its class is returned as it is stored too.
        """
        try:
            if event.type in self._types:
                return cast(MessageInstance, self._types.decode(event))
            class_ = self._returned.get(event.type)
            return event if class_ is None else event.decode(class_)
        except MessageError:
            return event


def known_events(declared: Declarations) -> KnownEvents:
    """Return the classes of a component's events, found once for what is declared."""
    number = sum(len(category.handled) for category in declared.all())
    known = _known.get(declared)
    if known is None or known[0] != number:
        known = _known[declared] = number, KnownEvents(declared)
    return known[1]


_known: WeakKeyDictionary[Declarations, tuple[int, KnownEvents]] = WeakKeyDictionary()
