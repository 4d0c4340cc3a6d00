"""An entity's state from the events in its stream."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reservation.errors import HandlerError, describe
from reservation.messages.message import StoredMessage
from reservation.messages.registry import MessageTypes
from reservation.serialization import codec
from reservation.store.statements import NO_STREAM
from reservation.store.writing import Row

# Any: each component has its own entity and event classes.
Projector = Callable[[Any, Any], None]


@dataclass(slots=True)
class Loaded:
    """An entity and the version of its stream that it stands for.

    Attributes:
        entity: the projected state.
        version: the position of the last event in it, -1 if there is none.
        snapshot: the version at which a snapshot of it was last taken, -1 if none was.
        started: whether the stream holds anything but pseudo events.
    """

    entity: object
    version: int = NO_STREAM
    snapshot: int = NO_STREAM
    started: bool = False


class Projection:
    """What each type of event does to an entity.

    Events of other types in the stream leave the entity as it is.
    """

    def __init__(self, types: MessageTypes) -> None:
        self._types = types
        self._projectors: dict[str, Projector] = {}

    def add(self, event: type, projector: Projector) -> None:
        """Let ``projector(entity, event)`` change the entity for events of this type."""
        self._projectors[self._types.add(event)] = projector

    @property
    def types(self) -> frozenset[str]:
        """The names of the event types that have a projector."""
        return frozenset(self._projectors)

    def apply_stored(self, entity: object, message: StoredMessage) -> None:
        """Decode a stored event and apply it, if its type has a projector.

        Raises:
            DecodeError: the event does not have the shape that its type declares.
            HandlerError: the projector raised.
        """
        projector = self._projectors.get(message.type)
        if projector is None:
            return
        event: object = message.decode(self._types[message.type])
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
            HandlerError: the event could not be read again, or the projector raised.
        """
        projector = self._projectors.get(row.type)
        if projector is None:
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
