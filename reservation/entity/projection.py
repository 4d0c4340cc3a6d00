"""An entity's state from the events in its stream."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reservation.errors import HandlerError, UnknownEventError
from reservation.messages.message import StoredMessage, printable
from reservation.messages.pseudo_event import PSEUDO_EVENT
from reservation.messages.registry import MessageTypes
from reservation.raised import describe
from reservation.serialization import codec
from reservation.store.statements import NO_STREAM
from reservation.store.writing.scheduling import ScheduledRow
from reservation.store.writing.write import Row

# Any: each component has its own entity and event classes.
Projector = Callable[[Any, Any], None]


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


class Projection:
    """What each type of event does to an entity.

    An entity's stream holds nothing unknown: an event that has no projector is one that is declared
    to leave the entity as it is, or the framework's own. Where entities are not made from events,
    every event is known.

    Attributes:
        projectors: the functions that apply events, by the types that they are stored under.
        passed: the types of the events that are declared to leave the entity as it is.
        ignored: the types that consumers skip, events among them.
        is_used: whether handlers get entities that are made from events.
    """

    def __init__(self, component: str, types: MessageTypes) -> None:
        """Begin without projectors.

        Args:
            component: the component's name.
            types: the component's message types.
        """
        self._component = component
        self._types = types
        self.projectors: dict[str, Projector] = {}
        self.passed: set[str] = set()
        self.ignored: set[str] = set()
        self.is_used = False

    @property
    def types(self) -> frozenset[str]:
        """The names of the event types that have a projector."""
        return frozenset(self.projectors)

    def knows(self, type_: str) -> bool:
        """Return whether events of a type may be in an entity's stream."""
        return (
            type_ in self.projectors
            or not self.is_used
            or type_ in self.passed
            or type_ in self.ignored
            or type_ == PSEUDO_EVENT
        )

    def knows_class(self, class_: type) -> bool:
        """Return whether events of a class may be in an entity's stream."""
        return self.knows(self._types.written(class_).name)

    def check_written(self, row: Row | ScheduledRow, cause: StoredMessage) -> None:
        """Refuse an event that nobody would know when it is read.

        Args:
            row: the event that is to be written.
            cause: the message that brings it about.

        Raises:
            HandlerError: its type is not declared.
        """
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
        upcasters = {name: self._types.upcasters(name) for name in self.projectors}
        return [sorted(self.projectors), sorted(self.passed | self.ignored), upcasters]

    def apply_stored(self, entity: object, message: StoredMessage) -> None:
        """Decode a stored event and apply it, if its type has a projector.

        Raises:
            UnknownEventError: nothing is declared of its type.
            DecodeError: the event does not have the shape that its type declares.
            HandlerError: the projector raised.
        """
        projector = self.projectors.get(message.type)
        if projector is None:
            if not self.knows(message.type):
                raise UnknownEventError(
                    f"Cannot load the entity of {printable(message.stream_name)}: nothing is "
                    f"declared of {message}; {self._remedy(message.type)}; if its class was "
                    f"renamed, name it there with was={printable(message.type)!r}; or let it pass "
                    f"with {self._component}.ignore({printable(message.type)!r})"
                )
            return
        event = self._types.decode(message)
        try:
            projector(entity, event)
        except Exception as error:
            raise HandlerError(f"The projector of {message} raised {describe(error)}") from error

    def apply_encoded(self, entity: object, row: Row, cause: StoredMessage) -> None:
        """Apply an event that is going to be written, if its type has a projector.

        The projector gets what any later reader of the stream will decode, and nobody else gets
        that same object.

        Args:
            entity: what to change.
            row: the event.
            cause: the message that brings it about.

        Raises:
            HandlerError: nothing is declared of its type, it could not be read again, or the
                projector raised.
        """
        projector = self.projectors.get(row.type)
        if projector is None:
            self.check_written(row, cause)
            return
        try:
            event: object = codec.decode_encoded(self._types[row.type], row.data)
        except Exception as error:  # a class may check itself as it likes
            raise HandlerError(
                f"The {row.type} that {cause} brings about cannot be read again: "
                f"{codec.explain(error)}. Let its class read what it has written"
            ) from error
        try:
            projector(entity, event)
        except Exception as error:
            raise HandlerError(
                f"The projector of what {cause} brings about raised {describe(error)}"
            ) from error
