"""Recognizing messages of subscribed categories by what followed from them.

The ids of events depend on the message that they follow from, so the first event of a message shows
that it was handled. A message that no event followed from has a row in ``reservation.passes``,
written in the transaction that moves the consumer's position. Nothing else is stored, and nothing
has to be declared. This is the default of `Component.on`.

A message that now leads to another entity is not recognized by its events, and one whose row was
pruned is not recognized either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from reservation.idempotence.strategy import Check, Incoming, Strategy
from reservation.messages.message import followed_id
from reservation.postgres.arrays import IntArray, TextArray, UuidArray
from reservation.postgres.queries import load_queries
from reservation.store.statements import Statement

_QUERIES = load_queries("reservation.idempotence", "passes.sql")


@dataclass(frozen=True, slots=True)
class Followed(Strategy):
    """Recognizes a message by the first event that followed from it, or by its recorded pass."""

    @property
    def leaves_trace(self) -> bool:
        """Whether handled messages are recognized by the log: those with events are."""
        return True

    @property
    def keeps_records(self) -> bool:
        """Whether `forget` lets handled messages be handled anew."""
        return True

    def forget(
        self,
        connection: Connection[Any],
        consumer: str,
        category: str,
        types: Sequence[str],  # noqa: ARG002  they are kept by category
    ) -> None:
        """Remove the passes of a category."""
        connection.execute(_QUERIES["forget"], {"consumer": consumer, "category": category})

    def look(self, consumer: str, category: str, batch: Sequence[Incoming]) -> Statement[Check]:
        """Return what looks for the first events of the messages and for their passes."""
        events = [followed_id(incoming.message.id, incoming.entity_stream, 0) for incoming in batch]
        parameters = [
            consumer,
            category,
            IntArray([incoming.message.global_position for incoming in batch]),
            TextArray([incoming.message.id for incoming in batch]),
            UuidArray(events),
            TextArray([incoming.entity_stream for incoming in batch]),
        ]
        return Statement(
            _QUERIES["handled_before"],
            parameters,
            lambda rows: _Handled({position for (position,) in rows}),
        )


class _Handled(Check):
    """Messages of a batch that were handled before, by their global positions."""

    def __init__(self, known: set[int]) -> None:
        self._known = known

    def is_duplicate(self, incoming: Incoming) -> bool:
        """Return whether something followed from the message, or a pass of it is recorded."""
        return incoming.message.global_position in self._known
