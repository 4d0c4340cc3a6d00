"""Entities that cannot be changed are not copied, and a projector returns the one that follows."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from immutables import Map

import consumers
from consumers.testing import run_in_memory
from reservation import Component, Context
from reservation.errors import DeclarationError, HandlerError
from reservation.strategies import StateBased
from reservation.testing import given


@dataclass(frozen=True)
class Book:
    booking_id: str
    hotel_id: str = "1"


@dataclass(frozen=True)
class Booked:
    booking_id: str


@dataclass(frozen=True, slots=True)
class Stay:
    nights: int = 1


@dataclass(frozen=True)
class Hotel:
    """An entity that cannot be changed."""

    count: int = 0
    bookings: Map[str, Stay] = field(default_factory=Map)


@dataclass
class Inn:
    """One that can, whose bookings cannot."""

    count: int = 0
    bookings: Map[str, Stay] = field(default_factory=Map)
    notes: list[str] = field(default_factory=list)


@dataclass
class Motel:
    """One whose bookings can be changed too."""

    count: int = 0
    bookings: dict[str, Stay] = field(default_factory=dict)


def hotel_of(entity: type, handler: Callable[..., Any] | None = None) -> Component[Any]:
    """Return a component whose entities are of a class."""
    hotel: Component[Any] = Component("hotel", entity=entity, id="hotel_id", attempts=1)

    @hotel.handle(Book, once=None)
    def book(command: Book, one: Any, context: Context) -> Any:
        return Booked(command.booking_id) if handler is None else handler(one, command)

    @hotel.project(Booked)
    def booked(one: Any, event: Booked) -> Any:
        if entity is Hotel:
            return replace(
                one, count=one.count + 1, bookings=one.bookings.set(event.booking_id, Stay(1))
            )
        one.count += 1
        if entity is Inn:
            one.bookings = one.bookings.set(event.booking_id, Stay(1))
        else:
            one.bookings[event.booking_id] = Stay(1)
        return None

    return hotel


def changes(one: Any, command: Book) -> Any:
    """Change an entity as far as that is possible, and book."""
    one.notes.append("changed")
    one.count = 100
    one.bookings = one.bookings.set("changed", Stay(9))
    return Booked(command.booking_id)


def test_handlers_that_change_their_entity_leave_no_trace(store, database_url):
    """What is kept between the messages of a batch is what projectors made."""
    seen = []

    def handler(one: Any, command: Book) -> Any:
        seen.append((one.count, dict(one.bookings), list(one.notes)))
        return changes(one, command)

    for n in range(3):
        store.write(Book(str(n)), "hotel:command-1")
    assert consumers.drain(hotel_of(Inn, handler), database_url).counts["handled"] == 3
    assert [count for count, _, _ in seen] == [0, 1, 2]
    assert [sorted(bookings) for _, bookings, _ in seen] == [[], ["0"], ["0", "1"]]
    assert [notes for _, _, notes in seen] == [[], [], []]


def test_a_projector_returns_the_next_entity(store, database_url):
    """The consumers, `given` and the store in memory go on with what it returned."""
    seen: list[Any] = []

    def handler(one: Hotel, command: Book) -> Booked:
        seen.append(one)
        return Booked(command.booking_id)

    commands = [Book(str(n)) for n in range(3)]
    for command in commands:
        store.write(command, "hotel:command-1")
    assert consumers.drain(hotel_of(Hotel, handler), database_url).counts["handled"] == 3
    counts = [one.count for one in seen]
    done = given(hotel_of(Hotel), "1", [Booked("before")]).when(commands)
    assert (done.entity.count, sorted(done.entity.bookings)) == (4, ["0", "1", "2", "before"])
    ran = run_in_memory(hotel_of(Hotel), commands)
    assert ran.entity(hotel_of(Hotel), "1").count == 3
    assert counts == [0, 1, 2]


def declared(entity: type, projector: Callable[..., Any]) -> Component[Any]:
    hotel: Component[Any] = Component("hotel", entity=entity, id="hotel_id", attempts=1)
    hotel.handle(Book, once=None)(lambda command, one, context: Booked(command.booking_id))
    hotel.project(Booked)(projector)
    return hotel


def test_a_projector_that_cannot_work_is_refused_when_it_is_declared():
    """One that is annotated to return None has nothing to change; another class is no entity."""

    def nothing(one: Hotel, event: Booked) -> None: ...

    def number(one: Inn, event: Booked) -> int:
        return 1

    def itself(one: Inn, event: Booked) -> Inn:
        return one

    def either(one: Inn, event: Booked) -> Inn | None:
        return None

    with pytest.raises(DeclarationError, match="a Hotel cannot be changed; let it return the new"):
        declared(Hotel, nothing)
    with pytest.raises(DeclarationError, match="annotated to return int; let it return the Inn"):
        declared(Inn, number)
    with pytest.raises(DeclarationError, match="a Stay cannot be changed; leave frozen=True out"):
        Component("hotel", entity=Stay, id="hotel_id").handle(Book, once=StateBased())
    declared(Inn, itself)
    declared(Inn, either)


@pytest.mark.parametrize(
    ("entity", "returned", "text"),
    [
        (Hotel, None, "returned None; let it return the Hotel, because a Hotel cannot be changed"),
        (Hotel, 1, "returned a int; let it return the Hotel, because"),
        (Inn, 1, "returned a int; let it return the Inn, or None if it changes"),
        (Inn, Hotel(), "returned a Hotel; let it return the Inn"),
    ],
)
def test_a_projector_that_returns_no_entity_is_a_failure(
    store, database_url, entity, returned, text
):
    """It is the message's failure, and the text is the same without a database."""
    component = declared(entity, lambda one, event: returned)
    store.write(Book("1"), "hotel:command-1")
    drained = consumers.drain(component, database_url)
    assert drained.counts["dead"] == 1
    (letter,) = run_in_memory(component, [Book("1")]).dead_letters
    assert text in str(letter.error)
    with pytest.raises(HandlerError, match="returned"):
        given(component).when(Book("1"))
    with pytest.raises(HandlerError, match="returned"):
        given(component, "1", [Booked("0")]).when(Book("1"))


def test_a_frozen_entity_may_hold_what_projectors_change(store, database_url):
    """A frozen class of parts that can be changed is changed by them, as any other."""

    @dataclass(frozen=True)
    class Ledger:
        bookings: list[str] = field(default_factory=list)

    def project(one: Ledger, event: Booked) -> None:
        one.bookings.append(event.booking_id)

    component = declared(Ledger, project)
    assert given(component, "1", [Booked("a")]).when(Book("b")).entity.bookings == ["a", "b"]
