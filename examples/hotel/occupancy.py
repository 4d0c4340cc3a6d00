"""A read model: how many rooms are taken in each night."""

import os
from collections.abc import Sequence
from typing import Any

from psycopg import Connection

from hotel.messages import Booked, Cancelled
from reservation import ReadContext, ReadModel, Recorded

# A release raises the version. The tests run two releases beside each other.
VERSION = int(os.environ.get("HOTEL_OCCUPANCY", "1"))

occupancy = ReadModel("occupancy", version=VERSION)

_ADDED = """
INSERT INTO nights AS n (night, room, taken)
SELECT b.first + day, b.room, sum(b.taken)
FROM unnest(%s::date[], %s::text[], %s::int[], %s::int[]) AS b(first, room, nights, taken)
CROSS JOIN LATERAL generate_series(0, b.nights - 1) AS day
GROUP BY 1, 2
ON CONFLICT (night, room) DO UPDATE SET taken = n.taken + EXCLUDED.taken
"""

_COUNTED = """
INSERT INTO rooms AS r
SELECT room, count(*) * %s FROM unnest(%s::text[]) AS b(room) GROUP BY room
ON CONFLICT (room) DO UPDATE SET bookings = r.bookings + EXCLUDED.bookings
"""


@occupancy.tables
def tables(connection: Connection[Any]) -> None:
    """Make the table; the second version also counts the bookings of a room."""
    connection.execute(
        "CREATE TABLE nights (night date, room text, taken int NOT NULL, PRIMARY KEY (night, room))"
    )
    if VERSION > 1:
        connection.execute("CREATE TABLE rooms (room text PRIMARY KEY, bookings int NOT NULL)")


@occupancy.handle_many(Booked, category="booking")
def booked(events: Sequence[Recorded[Booked]], context: ReadContext) -> None:
    add([one.event for one in events], 1, context)


@occupancy.handle_many(Cancelled, category="booking")
def cancelled(events: Sequence[Recorded[Cancelled]], context: ReadContext) -> None:
    add([one.event for one in events], -1, context)


def add(events: Sequence[Booked | Cancelled], taken: int, context: ReadContext) -> None:
    """Add so many rooms to each night of some bookings."""
    context.connection.execute(
        _ADDED,
        [
            [event.first for event in events],
            [event.room for event in events],
            [event.nights for event in events],
            [taken] * len(events),
        ],
    )
    if VERSION > 1:
        context.connection.execute(_COUNTED, [taken, [event.room for event in events]])
