"""Recognizing a message by its global position in the events that it caused.

A consumer reads a category in order, so one number says which of its messages an entity has seen:
the highest global position among the messages that caused its events. A message that is not beyond
it has already been handled. Each category has a number of its own, because their consumers run side
by side. (Source: the sequence of Eventide's account component, and
its counterpart for each category in Hubbado's sequential idempotence.)

It relies on the order, and on events:

- A message without an event leaves no number, unless ``pseudo_events`` is set. It is handled again,
  as long as no later message of its entity left a number.
- A message that is read after a later message of its entity is taken for a duplicate, although it
  was never handled. So entities wait behind their dead letters. A dead letter whose entity was not
  known is refused when it is retried, and so is a message that may be out of order because of
  several partitions. Such a message has to be sent again, as another message.
- A reissue is another message with a position of its own, under the same id or not.
"""

import collections.abc
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from reservation.idempotence.in_events.event_causes import causes, with_local
from reservation.idempotence.strategy import Check, Incoming, Strategy
from reservation.messages.message import StoredMessage
from reservation.messages.metadata import Metadata
from reservation.messages.pseudo_event import PseudoEvent
from reservation.messages.stream_name import cardinal_id


def in_order(message: StoredMessage, entity_stream: str) -> bool:
    """Return whether a message is in the same partition as its entity, whatever their number."""
    return cardinal_id(message.stream_name) == cardinal_id(entity_stream)


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

    def begin(
        self,
        connection: Connection[Any],
        consumer: str,
        category: str,
        batch: collections.abc.Sequence[Incoming],
    ) -> Check:
        """Find the highest position that each entity has seen of the category, in one statement."""
        del consumer  # entity streams differ between components
        highest: dict[str, int] = {}
        for cause in causes(connection, batch):
            if cause.source == category and cause.sequence is not None:
                highest[cause.stream_name] = max(cause.sequence, highest.get(cause.stream_name, 0))
        return _HighestPositions(highest, pseudo_events=self.pseudo_events)


class _HighestPositions(Check):
    """The highest global position that each entity has seen of one category."""

    def __init__(self, highest: dict[str, int], *, pseudo_events: bool) -> None:
        self._highest = highest
        self._pseudo_events = pseudo_events

    def is_duplicate(self, incoming: Incoming) -> bool:
        """Return whether the entity has seen the message, or a later one."""
        return incoming.message.global_position <= self._highest.get(incoming.entity_stream, 0)

    def effects(
        self, incoming: Incoming, events: collections.abc.Sequence[object], metadata: Metadata
    ) -> tuple[collections.abc.Sequence[object], Metadata]:
        """Add the message's global position to the events."""
        if not events and self._pseudo_events:
            events = [PseudoEvent()]
        sequence = incoming.message.global_position
        if events:
            self._highest[incoming.entity_stream] = sequence
        return events, with_local(metadata, "sequence", sequence)
