"""What the events of entities say of the messages that brought them about.

It is in their metadata, as local properties, which are not handed on to what follows the events.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from reservation.idempotence.strategy import Incoming
from reservation.messages.metadata import Metadata
from reservation.postgres.arrays import IntArray, TextArray, array_cursor
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.idempotence.in_events")


@dataclass(frozen=True, slots=True)
class Cause:
    """What an event says of the message that brought it about.

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


# Any: connections differ in what their rows are.
def causes(connection: Connection[Any], batch: Sequence[Incoming]) -> list[Cause]:
    """Return what brought about those events that a message of the batch may have brought about.

    These are the events of its entity that were stored after it. It takes one statement, which
    reads as many events as there are of those: next to none, unless a message is there again.

    Args:
        connection: in the transaction that writes the effects of the batch.
        batch: the messages.
    """
    if not batch:
        return []
    after: dict[str, int] = {}
    for incoming in batch:
        position = incoming.message.global_position
        after[incoming.entity_stream] = min(position, after.get(incoming.entity_stream, position))
    with translated():
        rows = (
            array_cursor(connection)
            .execute(
                _QUERIES["newer_events"], [TextArray(list(after)), IntArray(list(after.values()))]
            )
            .fetchall()
        )
    return [Cause(*row) for row in rows]


def with_local(metadata: Metadata, name: str, value: str | int) -> Metadata:
    """Return metadata with one more local property."""
    return dataclasses.replace(
        metadata, local_properties={**metadata.local_properties, name: value}
    )
