"""Reading the positions that a consumer of Eventide stored, to go on from there.

Such a consumer writes its position to a stream of its own, named for the category that it reads:
``account:command+position`` for ``account:command``, ``accountTransaction:position`` for
``accountTransaction``, followed by ``-`` and the consumer's identifier if it has one. The last
message counts. It holds the global position of the last message that was handled, and is written
after every so many messages, 100 unless it is set. (Source: the libraries consumer and
consumer-postgres of Eventide.) That is what a position is here too, so the message after it is the
next one; the few that were handled since it was written are redelivered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from psycopg import Connection

from reservation.errors import StoreError
from reservation.store.client import MessageStore


class _Recorded(msgspec.Struct):
    position: int


@dataclass(frozen=True, slots=True)
class EventidePosition:
    """A position that Eventide stored.

    Attributes:
        stream_name: where it is stored; the lowest where there were several.
        position: the global position of the last message that was handled.
    """

    stream_name: str
    position: int


def position_stream(category: str, identifier: str | None) -> str:
    """Return the name of the stream in which a consumer of a category stores its position."""
    entity, separator, types = category.partition(":")
    named = types.split("+") if separator else []
    if "position" not in named:
        named.append("position")
    name = f"{entity}:{'+'.join(named)}"
    return name if identifier is None else f"{name}-{identifier}"


def stored_position(
    connection: Connection[Any], category: str, identifiers: Sequence[str]
) -> EventidePosition | None:
    """Return what the consumers of a category stored."""
    named: Sequence[str | None] = identifiers or [None]
    streams = [position_stream(category, identifier) for identifier in named]
    found = [EventidePosition(name, _last(connection, name)) for name in streams]
    if not any(stored.position for stored in found):
        return None
    return min(found, key=lambda stored: stored.position)


def _last(connection: Connection[Any], stream_name: str) -> int:
    """Return the last position of a stream; 0 if there is none."""
    message = MessageStore(connection).last_message(stream_name)
    if message is None:
        return 0
    try:
        position = msgspec.json.decode(message.data or "", type=_Recorded).position
    except msgspec.MsgspecError:
        position = -1
    if position < 0:
        raise StoreError(
            f"The last message of {stream_name}, {message}, holds no position; name the stream's "
            f"category and identifier as the consumer has them"
        )
    return position
