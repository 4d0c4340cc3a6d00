"""Making the tables of a read model, with one event a call and with many."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
from psycopg import Connection

import consumers
from benchmarks.harness import Bench, Result, benchmark, rate
from reservation import ReadContext, ReadModel, Recorded
from reservation.postgres.connection import connect
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("benchmarks")

# Events of a rebuild; one in ten of them for a call each, which takes longer.
EVENTS = int(os.environ.get("BENCH_EVENTS", "1000000"))
BATCH = 1000
GROWTH = 1.1  # of the memory after all events beside that after the first fifth


@dataclass(frozen=True)
class Booked:
    booking_id: str
    night: int


def _tables(connection: Connection[Any]) -> None:
    connection.execute("CREATE TABLE bookings (id text PRIMARY KEY, night int NOT NULL)")


def _model(name: str, seen: list[float], *, many: bool) -> ReadModel:
    """Return a model with a row for each event; it notes the memory of the process, in MB."""
    model = ReadModel(name, version=1)
    model.tables(_tables)
    process = psutil.Process()

    def note() -> None:
        seen.append(process.memory_info().rss / 2**20)

    def booked_many(events: Sequence[Recorded[Booked]], context: ReadContext) -> None:
        note()
        ids, nights = [one.event.booking_id for one in events], [one.event.night for one in events]
        context.connection.execute(_QUERIES["insert_bookings"], [ids, nights])

    def booked(event: Booked, context: ReadContext) -> None:
        if not event.night:
            note()
        context.connection.execute(_QUERIES["insert_booking"], [event.booking_id, event.night])

    if many:
        model.handle_many(Booked, category="booking")(booked_many)
    else:
        model.handle(Booked, category="booking")(booked)
    return model


@benchmark
def read_models(bench: Bench) -> Iterator[Result]:
    """Make a row for each of 1,000,000 events, a thousand at once, and for 100,000 one by one."""
    of_many: list[float] = []
    of_single: list[float] = []
    few = EVENTS // 10
    with bench.database() as url, connect(url, autocommit=True) as connection:
        connection.execute(_QUERIES["fill_bookings"], {"count": EVENTS})
        connection.execute("VACUUM ANALYZE message_store.messages")
        many = rate(EVENTS, lambda: consumers.drain(_model("sets", of_many, many=True), url))
        copied = _copied(connection, EVENTS)
    with bench.database() as url, connect(url, autocommit=True) as connection:
        connection.execute(_QUERIES["fill_bookings"], {"count": few})
        connection.execute("VACUUM ANALYZE message_store.messages")
        single = rate(few, lambda: consumers.drain(_model("singles", of_single, many=False), url))
        inserted = _inserted(connection, few)
    yield Result.rate("read_models, handle_many", many, "COPY of the same rows", copied, 0.2)
    yield Result.rate("read_models, handle", single, "an INSERT for each", inserted, 0.5)
    yield _memory("handle_many", of_many, EVENTS)
    yield _memory("handle", of_single, few)


def _memory(name: str, seen: Sequence[float], events: int) -> Result:
    """Return the highest memory, beside what it was after the first fifth of the events."""
    first, highest = max(seen[: len(seen) // 5]), max(seen)
    ratio = round(highest / first, 2)
    against = f"{first:.0f} MB after {events // 5:,} of {events:,}"
    return Result(
        f"read_models, {name}, memory",
        round(highest),
        "MB",
        against,
        ratio,
        GROWTH,
        ratio <= GROWTH,
    )


def _copied(connection: Connection[Any], count: int) -> float:
    connection.execute("CREATE TABLE bookings (id text PRIMARY KEY, night int NOT NULL)")

    def copy() -> None:
        with connection.cursor().copy("COPY bookings FROM STDIN") as copying:
            for n in range(count):
                copying.write_row((f"b{n}", n % 365))

    return rate(count, copy)


def _inserted(connection: Connection[Any], count: int) -> float:
    connection.execute("CREATE TABLE bookings (id text PRIMARY KEY, night int NOT NULL)")

    def insert() -> None:
        for first in range(0, count, BATCH):
            with connection.transaction():
                for n in range(first, min(first + BATCH, count)):
                    connection.execute(_QUERIES["insert_booking"], [f"b{n}", n % 365])

    return rate(count, insert)
