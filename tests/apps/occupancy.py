"""A hotel's nights, as the tests of read models use them: bookings, and a table of what is taken.

Started as processes, the apps are ``tests.apps.occupancy:first`` and ``:second`` in the folder of
the repository.
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg import Connection

from reservation import MessageStore, ReadContext, ReadModel, Recorded, Write

ROOT = Path(__file__).parents[2]
FIRST, SECOND = "tests.apps.occupancy:first", "tests.apps.occupancy:second"
BOOKINGS = "booking"


@dataclass(frozen=True)
class Booked:
    booking_id: str
    night: int
    rooms: int = 1


@dataclass(frozen=True)
class Cancelled:
    booking_id: str
    night: int
    rooms: int = 1


def make_nights(connection: Connection[Any]) -> None:
    connection.execute("CREATE TABLE nights (night int PRIMARY KEY, taken int NOT NULL)")


def take(context: ReadContext, night: int, rooms: int) -> None:
    """Add rooms to a night; 0 deletes it, so that the order of events matters."""
    context.connection.execute(
        "INSERT INTO nights VALUES (%s, %s)"
        " ON CONFLICT (night) DO UPDATE SET taken = nights.taken + excluded.taken",
        [night, rooms],
    )


def one_by_one(version: int = 1, **options: Any) -> ReadModel:
    """Return a model whose handlers take one event; 13 rooms fail, 99 kill the process once."""
    model = ReadModel("occupancy", version=version, **options)
    model.tables(make_nights)

    @model.handle(Booked, category=BOOKINGS)
    def booked(event: Booked, context: ReadContext) -> None:
        if event.rooms == 13:
            raise ValueError("unlucky")
        if event.rooms == 99 and (file := Path(os.environ["KILLS"])).exists():
            file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        take(context, event.night, event.rooms)

    @model.handle(Cancelled, category=BOOKINGS)
    def cancelled(event: Cancelled, context: ReadContext) -> None:
        take(context, event.night, -event.rooms)

    return model


def by_sets(version: int = 2, calls: list[int] | None = None, **options: Any) -> ReadModel:
    """Return a model with other columns, whose handlers take many events, as sets of rows."""
    model = ReadModel("occupancy", version=version, **options)
    sizes = [] if calls is None else calls

    @model.tables
    def tables(connection: Connection[Any]) -> None:
        connection.execute(
            "CREATE TABLE nights (night int PRIMARY KEY, taken int NOT NULL, events int NOT NULL)"
        )

    @model.handle_many(Booked, category=BOOKINGS)
    def booked(events: Sequence[Recorded[Booked]], context: ReadContext) -> None:
        sizes.append(len(events))
        add(context, [(one.event.night, one.event.rooms) for one in events])

    @model.handle_many(Cancelled, category=BOOKINGS)
    def cancelled(events: Sequence[Recorded[Cancelled]], context: ReadContext) -> None:
        sizes.append(len(events))
        add(context, [(one.event.night, -one.event.rooms) for one in events])

    return model


def add(context: ReadContext, rows: Sequence[tuple[int, int]]) -> None:
    """Add rooms to nights in one statement; 13 rooms are refused."""
    if any(rooms == 13 for _, rooms in rows):
        raise ValueError("unlucky")
    context.connection.execute(
        "INSERT INTO nights SELECT night, sum(rooms), count(*)"
        " FROM unnest(%s::int[], %s::int[]) AS e(night, rooms) GROUP BY night"
        " ON CONFLICT (night) DO UPDATE"
        " SET taken = nights.taken + excluded.taken, events = nights.events + excluded.events",
        [[night for night, _ in rows], [rooms for _, rooms in rows]],
    )


first, second = one_by_one(), by_sets()


def book(store: MessageStore, *nights: int, rooms: int = 1, booking: str | None = None) -> None:
    """Write an event of a booking for each night, in a stream of its own unless one is named."""
    store.write_batch(
        Write(Booked(booking or f"b{n}", night, rooms), f"{BOOKINGS}-{booking or f'b{night}x{n}'}")
        for n, night in enumerate(nights)
    )


def nights(connection: Connection[Any], schema: str = "occupancy") -> dict[int, int]:
    """Return how many rooms are taken, by night."""
    rows = connection.execute(f"SELECT night, taken FROM {schema}.nights ORDER BY night")
    return dict(rows.fetchall())
