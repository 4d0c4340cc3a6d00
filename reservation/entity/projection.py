"""An entity's state from the events in its stream."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from reservation.errors import HandlerError, UnknownEventError
from reservation.messages.message import StoredMessage, printable
from reservation.messages.pseudo_event import PSEUDO_EVENT
from reservation.messages.registry import MessageTypes
from reservation.raised import describe
from reservation.serialization import codec
from reservation.serialization.immutability import never_changes
from reservation.store.statements import NO_STREAM
from reservation.store.writing.scheduling import ScheduledRow
from reservation.store.writing.write import Row

# Any: each component has its own entity and event classes.
Projector = Callable[[Any, Any], Any]


@dataclass(slots=True)
class Loaded:
    """An entity and the version of its stream that it stands for.

    Attributes:
        entity: the projected state.
        version: the position of the last event in it, -1 if there is none.
        snapshot: the version at which a snapshot of it was last taken, -1 if none was.
        started: whether the stream holds anything but pseudo events; the rejection of a command
            that initiates counts.
    """

    entity: object
    version: int = NO_STREAM
    snapshot: int = NO_STREAM
    started: bool = False


class DeclaredEvents(Protocol):
    """The declared events of a component."""

    name: str
    entity: Any
    types: MessageTypes

    @property
    def projected(self) -> frozenset[str]:
        """The event types that have a projector."""

    @property
    def passed(self) -> frozenset[str]:
        """The types of the events that leave the entity as it is."""

    @property
    def loads_entities(self) -> bool:
        """Whether handlers get entities that are made from events."""

    def projector(self, type_: str) -> Projector | None:
        """Return the projector of a type; None if there is none."""

    def is_passed(self, type_: str) -> bool:
        """Return whether events of a type leave the entity as it is."""


class Projection:
    """Applies each type of event to an entity.

    An entity's stream holds nothing unknown: an event that has no projector is one that is declared
    to leave the entity as it is, or the framework's own. Where entities are not made from events,
    every event is known.
    """

    def __init__(self, declared: DeclaredEvents) -> None:
        self._declared = declared
        self._component = declared.name
        self._types = declared.types
        self._projector = declared.projector

    def knows(self, type_: str) -> bool:
        """Return whether events of a type may be in an entity's stream."""
        declared = self._declared
        return (
            declared.projector(type_) is not None
            or declared.is_passed(type_)
            or type_ == PSEUDO_EVENT
            or not declared.loads_entities
        )

    def knows_class(self, class_: type) -> bool:
        """Return whether events of a class may be in an entity's stream."""
        return self.knows(self._types.written(class_).name)

    def check_written(self, row: Row | ScheduledRow, cause: StoredMessage) -> None:
        """Refuse an event that nobody would know when it is read."""
        if not self.knows(row.type):
            raise HandlerError(
                f"The handler of {cause} wrote the event {printable(row.type)}, which is not "
                f"declared; {self._remedy(row.type)}"
            )

    def _remedy(self, type_: str) -> str:
        component, named = self._component, printable(type_)
        return (
            f"declare a projector with @{component}.project({named}), or "
            f"{component}.message({named}) if it does not change the entity"
        )

    def code(self) -> list[Any]:
        """Return what the projection of a stream depends on, except for the code of projectors."""
        upcasters = {name: self._types.upcasters(name) for name in self._declared.projected}
        return [sorted(self._declared.projected), sorted(self._declared.passed), upcasters]

    def apply_stored(self, entity: object, message: StoredMessage) -> object:
        """Decode a stored event and apply it, if its type has a projector; return the entity."""
        projector = self._projector(message.type)
        if projector is None:
            if not self.knows(message.type):
                raise UnknownEventError(
                    f"Cannot load the entity of {printable(message.stream_name)}: its event "
                    f"{message}, is not declared; {self._remedy(message.type)}; if its class was "
                    f"renamed, give {self._component}.message its former name with "
                    f"former_names={printable(message.type)!r}; or let it pass "
                    f"with {self._component}.ignore({printable(message.type)!r})"
                )
            return entity
        event = self._types.decode(message)
        try:
            returned = projector(entity, event)
        except Exception as error:
            raise HandlerError(f"The projector of {message} raised {describe(error)}") from error
        return self._projected(entity, returned, lambda: message)

    def apply_encoded(self, entity: object, row: Row, cause: StoredMessage) -> object:
        """Apply an event that is going to be written, if its type has a projector.

        The projector gets what any later reader of the stream will decode, and nobody else gets
        that same object.
        """
        projector = self._projector(row.type)
        if projector is None:
            self.check_written(row, cause)
            return entity
        try:
            event: object = codec.decode_encoded(self._types[row.type], row.data)
        except Exception as error:  # a class may check itself as it likes
            raise HandlerError(
                f"The {row.type} that follows {cause}, cannot be read again: "
                f"{codec.explain(error)}. Let its class read what it has written"
            ) from error
        try:
            returned = projector(entity, event)
        except Exception as error:
            raise HandlerError(
                f"The projector of the {row.type} that follows {cause}, raised {describe(error)}"
            ) from error
        return self._projected(entity, returned, lambda: f"the {row.type} that follows {cause},")

    def _projected(
        self, entity: object, returned: object, described: Callable[[], object]
    ) -> object:
        """Return the entity after a projector, which changed it or returned a new one."""
        class_: Any = type(entity)
        if returned is None:
            if not never_changes(class_):
                return entity
        elif type(returned) is class_ or isinstance(returned, self._declared.entity or class_):
            return returned
        name = class_.__name__
        instead = "or None if it changes the one that it takes"
        if never_changes(class_):
            instead = f"because a {name} cannot be changed"
        raise HandlerError(
            f"The projector of {described()} returned {_shown(returned)}; let it return the "
            f"{name}, {instead}"
        )


def _shown(returned: object) -> str:
    return "None" if returned is None else f"a {type(returned).__name__}"
