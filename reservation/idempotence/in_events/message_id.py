"""Recognizing messages by their ids in the events that they caused.

Each event carries the id of its message, and a message without events leaves a pseudo event. A
message whose id is in its entity's events has already been handled. Nothing is stored besides the
events, and nothing is forgotten. Two components that handle the same message write to their own
entities, so each finds its own events.

A reissue under another id is not recognized, nor is a message that now names another entity.
(Source: Richardson, *Microservices Patterns*, 3.3.6 and 6.1.6, for stores whose transactions are
limited.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from reservation.idempotence.in_events.event_causes import causes, with_local
from reservation.idempotence.strategy import Check, Incoming, Strategy
from reservation.messages.metadata import Metadata
from reservation.messages.pseudo_event import PseudoEvent


@dataclass(frozen=True, slots=True)
class MessageIdInEvents(Strategy):
    """Recognizes a message by its id, which the events that it caused carry.

    ``@account.handle(Deposit, once=MessageIdInEvents())``
    """

    @property
    def leaves_trace(self) -> bool:
        """Whether handled messages are recognized by the log: they are."""
        return True

    def begin(
        self, connection: Connection[Any], consumer: str, category: str, batch: Sequence[Incoming]
    ) -> Check:
        """Look for the messages among the events of their entities, in one statement."""
        del consumer, category  # entity streams differ between components
        found = causes(connection, batch)
        return _EventIds(
            {(cause.stream_name, cause.message_id) for cause in found if cause.message_id}
        )


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
