"""Recognizing messages by what the events that they caused say: their ids, or their positions.

That is in the local properties of the events, which messages that follow them do not inherit.
Nothing is stored besides the events, and nothing is forgotten. Two components that handle the same
message write to their own entities, so each finds its own events. A reissue under another id is not
recognized, nor is a message that now names another entity.

By its id each message is recognized, in whatever order they come; one without events leaves a
pseudo event. (Source: Richardson, *Microservices Patterns*, 3.3.6 and 6.1.6, for stores whose
transactions are limited.)

By positions one number says which messages of a category an entity has seen: the highest global
position among those that caused its events. Each category has a number of its own, because their
consumers run side by side. (Source: the sequence of Eventide's account component, and its
counterpart for each category in Hubbado's sequential idempotence.) That relies on the order, and on
events:

- A message without an event leaves no number, unless ``pseudo_events`` is set. It is handled again,
  as long as no later message of its entity left a number.
- A message that is read after a later message of its entity is taken for a duplicate, although it
  was never handled. So entities wait behind their dead letters. A dead letter whose entity was not
  known is refused when it is retried, and so is a message that may be out of order because of
  several partitions. Such a message has to be sent again, as another message.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from reservation.idempotence.strategy import Check, Incoming, Strategy
from reservation.messages.message import StoredMessage
from reservation.messages.metadata import Metadata
from reservation.messages.pseudo_event import PseudoEvent
from reservation.messages.stream_name import cardinal_id
from reservation.postgres.arrays import IntArray, TextArray
from reservation.postgres.queries import load_queries
from reservation.store.statements import Statement

_QUERIES = load_queries("reservation.idempotence", "in_events.sql")


@dataclass(frozen=True, slots=True)
class MessageIdInEvents(Strategy):
    """Recognizes a message by its id, which the events that it caused carry.

    ``@account.handle(Deposit, once=MessageIdInEvents())``
    """

    @property
    def leaves_trace(self) -> bool:
        """Whether handled messages are recognized by the log: they are."""
        return True

    def look(self, consumer: str, category: str, batch: Sequence[Incoming]) -> Statement[Check]:
        """Return what looks for the messages among the events of their entities."""
        del consumer, category  # entity streams differ between components

        def check(found: Iterable[Cause]) -> Check:
            return _EventIds(
                {(cause.stream_name, cause.message_id) for cause in found if cause.message_id}
            )

        return _looking_at_causes(batch, check)


@dataclass(frozen=True, slots=True)
class PositionInEvents(Strategy):
    """Recognizes a message by its global position, which the events that it caused carry.

    ``@account.handle(Deposit, once=PositionInEvents())``

    Attributes:
        pseudo_events: whether a message without events leaves a pseudo event, so that it is
            recognized too.
    """

    pseudo_events: bool = False

    @property
    def leaves_trace(self) -> bool:
        """Whether handled messages are recognized by the log: they are."""
        return True

    @property
    def needs_order(self) -> bool:
        """Whether a message is refused that may be out of the order of its entity: it is."""
        return True

    def look(self, consumer: str, category: str, batch: Sequence[Incoming]) -> Statement[Check]:
        """Return what looks for the highest position that each entity has seen of the category."""
        del consumer  # entity streams differ between components

        def check(found: Iterable[Cause]) -> Check:
            highest: dict[str, int] = {}
            for cause in found:
                if cause.source == category and cause.sequence is not None:
                    last = highest.get(cause.stream_name, 0)
                    highest[cause.stream_name] = max(cause.sequence, last)
            return _HighestPositions(highest, pseudo_events=self.pseudo_events)

        return _looking_at_causes(batch, check)


class _EventIds(Check):
    """The ids that the events of each entity carry."""

    def __init__(self, known: set[tuple[str, str]]) -> None:
        self._known = known

    def is_duplicate(self, incoming: Incoming) -> bool:
        """Return whether an event of the entity carries the message's id."""
        return (incoming.entity_stream, incoming.message.id) in self._known

    def effects(
        self, incoming: Incoming, events: Sequence[object], metadata: Metadata
    ) -> tuple[Sequence[object], Metadata]:
        """Add the message's id to the events; without events, to a pseudo event."""
        self._known.add((incoming.entity_stream, incoming.message.id))
        return events or [PseudoEvent()], with_local(metadata, "messageId", incoming.message.id)


class _HighestPositions(Check):
    """The highest global position that each entity has seen of one category."""

    def __init__(self, highest: dict[str, int], *, pseudo_events: bool) -> None:
        self._highest = highest
        self._pseudo_events = pseudo_events

    def is_duplicate(self, incoming: Incoming) -> bool:
        """Return whether the entity has seen the message, or a later one."""
        return incoming.message.global_position <= self._highest.get(incoming.entity_stream, 0)

    def effects(
        self, incoming: Incoming, events: Sequence[object], metadata: Metadata
    ) -> tuple[Sequence[object], Metadata]:
        """Add the message's global position to the events."""
        if not events and self._pseudo_events:
            events = [PseudoEvent()]
        sequence = incoming.message.global_position
        if events:
            self._highest[incoming.entity_stream] = sequence
        return events, with_local(metadata, "sequence", sequence)


def in_order(message: StoredMessage, entity_stream: str) -> bool:
    """Return whether a message is in the same partition as its entity, whatever their number."""
    return cardinal_id(message.stream_name) == cardinal_id(entity_stream)


@dataclass(frozen=True, slots=True)
class Cause:
    """The message that caused an event, as the event's metadata says.

    Attributes:
        stream_name: the event's stream.
        message_id: the message's id; None if the event does not carry it.
        source: the category that the message was read from.
        sequence: the message's global position; None if the event does not carry it.
    """

    stream_name: str
    message_id: str | None
    source: str | None
    sequence: int | None


def _looking_at_causes(
    batch: Sequence[Incoming], check: Callable[[Iterable[Cause]], Check]
) -> Statement[Check]:
    """Return what reads the causes of those events that a message of the batch may have caused.

    These are the events of its entity that were stored after it; there are next to none, unless a
    message has been handled.
    """
    after: dict[str, int] = {}
    for incoming in batch:
        position = incoming.message.global_position
        after[incoming.entity_stream] = min(position, after.get(incoming.entity_stream, position))
    return Statement(
        _QUERIES["newer_causes"],
        [TextArray(list(after)), IntArray(list(after.values()))],
        lambda rows: check(Cause(*row) for row in rows),
    )


def with_local(metadata: Metadata, name: str, value: str | int) -> Metadata:
    """Return metadata with one more local property."""
    return dataclasses.replace(
        metadata, local_properties={**metadata.local_properties, name: value}
    )
