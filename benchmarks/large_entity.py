"""What a message costs whose entity holds much, beside one whose entity holds little."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from immutables import Map

from benchmarks import workload
from benchmarks.harness import Bench, Result, benchmark, rate
from reservation import Component, Context, MessageStore, Write
from reservation.handlers.reject import Reject
from reservation.postgres.connection import connect

ITEMS, COUNT, SMALL, TURNS = 50_000, 10_000, 500, 3


@dataclass(frozen=True)
class Book:
    booking_id: str
    hotel_id: str
    nights: int


@dataclass(frozen=True)
class Booked:
    booking_id: str
    hotel_id: str
    nights: int


@dataclass(frozen=True)
class Frozen:
    """An entity that cannot be changed."""

    nights: int = 0
    bookings: Map[str, int] = field(default_factory=Map)


@dataclass
class Changed:
    """One that can be, and holds what grows in a collection that cannot."""

    nights: int = 0
    bookings: Map[str, int] = field(default_factory=Map)


@benchmark
def large_entity(bench: Bench) -> Iterator[Result]:
    """Handle 10,000 commands of an entity that holds 50,000 items, and of 500 that share these."""
    for entity in (Frozen, Changed):
        in_turns = [
            (_handled(bench, entity, 1), _handled(bench, entity, SMALL)) for _ in range(TURNS)
        ]
        one, many = (statistics.median(rates) for rates in zip(*in_turns, strict=True))
        yield Result.rate(f"large_entity_{entity.__name__.lower()}", one, "small ones", many, 0.5)


def _handled(bench: Bench, entity: type, hotels: int) -> float:
    """Book rooms of so many hotels, which have 50,000 bookings; return messages a second."""
    declared = _declared(entity)
    with bench.database() as url, connect(url, autocommit=True) as connection:
        store = MessageStore(connection)
        workload.write_batches(store, _commands(0, ITEMS, hotels))
        with workload.consumer(connection, declared, "hotel:command") as step:
            assert workload.drain(step) == ITEMS
            workload.write_batches(store, _commands(ITEMS, COUNT, hotels))
            workload.settle(connection)
            reached = rate(COUNT, lambda: workload.drain(step))
        assert workload.stored(connection, "hotel") == ITEMS + COUNT
    return reached


def _commands(first: int, count: int, hotels: int) -> list[Write]:
    return [
        Write(Book(f"b{n}", str(n % hotels), 2), f"hotel:command-{n % hotels}")
        for n in range(first, first + count)
    ]


def _declared(entity: type) -> Component:
    hotel = Component("hotel", entity=entity, id="hotel_id")

    @hotel.handle(Book, once=None)
    def book(command: Book, one: Frozen | Changed, context: Context) -> Booked:
        if command.booking_id in one.bookings:
            raise Reject("it is booked")
        return context.follow(command, Booked)

    if entity is Frozen:

        @hotel.project(Booked)
        def booked(one: Frozen, event: Booked) -> Frozen:
            bookings = one.bookings.set(event.booking_id, event.nights)
            return replace(one, nights=one.nights + event.nights, bookings=bookings)

    else:

        @hotel.project(Booked)
        def changed(one: Changed, event: Booked) -> None:
            one.nights += event.nights
            one.bookings = one.bookings.set(event.booking_id, event.nights)

    return hotel
