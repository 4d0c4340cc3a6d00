"""Which messages caused the events of entities, as the metadata of the events says.

That is in local properties, which messages that follow the events do not inherit.
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


# Any: connections differ in what their rows are.
def causes(connection: Connection[Any], batch: Sequence[Incoming]) -> list[Cause]:
    """Return the causes of those events that a message of the batch may have caused.

    These are the events of its entity that were stored after it. One statement reads them; there
    are next to none, unless a message has been handled.

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
