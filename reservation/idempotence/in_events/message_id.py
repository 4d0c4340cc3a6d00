"""The ids of messages in the events that they brought about, to know the messages again by.

Each event carries the id of its message, and a message that brought about none leaves a pseudo
event. A message whose id is among its entity's events is there again. Nothing is kept beside the
events, and nothing is forgotten. Two components that handle the same message write to entities of
their own, and so do not take each other's events for theirs.

What it does not see is a reissue under another id: that is another message to it. Nor does it see a
message that comes for another entity than at first. (Source: Richardson, *Microservices Patterns*,
3.3.6 and 6.1.6, for stores whose transactions are limited.)
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
    """Knows a message again by its id, which the events that it brought about carry.

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
        del consumer, category  # the entity's stream tells one component from another
        found = causes(connection, batch)
        return _EventIds(
            {(cause.stream_name, cause.message_id) for cause in found if cause.message_id}
        )


class _EventIds(Check):
    """The ids that the events of each entity carry."""

    def __init__(self, known: set[tuple[str, str]]) -> None:
        self._known = known

    def is_duplicate(self, incoming: Incoming) -> bool:
        """Tell whether an event of the entity carries the message's id."""
        return (incoming.entity_stream, incoming.message.id) in self._known

    def effects(
        self, incoming: Incoming, events: Sequence[object], metadata: Metadata
    ) -> tuple[Sequence[object], Metadata]:
        """Let the events carry the message's id; there is one at least."""
        self._known.add((incoming.entity_stream, incoming.message.id))
        return events or [PseudoEvent()], with_local(metadata, "messageId", incoming.message.id)
