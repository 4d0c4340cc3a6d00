"""Bookings: rooms are taken in the hotel's own tables, in the transaction of the event."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from hotel.messages import Book, Booked, Cancel, Cancelled, Confirmed, Paid, Pay
from hotel.tables import PRICES, Night
from reservation import Component, Context, Reject


@dataclass
class Booking:
    """What the events say about a booking."""

    state: Literal["new", "booked", "confirmed", "cancelled"] = "new"
    room: str = ""
    first: date = date.min
    nights: int = 0


def locked(session: Session, room: str, first: date, nights: int) -> Sequence[Night]:
    """Return the nights of a stay, locked in their order, so that no two stays deadlock."""
    last = first + timedelta(days=nights - 1)
    of_stay = select(Night).where(Night.room == room, Night.night.between(first, last))
    return session.scalars(of_stay.order_by(Night.night).with_for_update()).all()


bookings = Component("booking", entity=Booking, id="booking_id")


@bookings.initiate(Book)
def book(command: Book, context: Context) -> Booked:
    """Take the nights, or reject the booking, and ask for the money."""
    with context.session() as session:
        nights = locked(session, command.room, command.first, command.nights)
        if len(nights) < command.nights or any(night.free == 0 for night in nights):
            raise Reject(f"no {command.room} is free in these nights")
        for night in nights:
            night.free -= 1
    cents = PRICES[command.room] * command.nights
    booked = context.follow(command, Booked, cents=cents)
    context.write(context.follow(booked, Pay), f"payment:command-{command.booking_id}")
    return booked


@bookings.handle(Cancel, key="booking_id")
def cancel(command: Cancel, booking: Booking, context: Context) -> Cancelled:
    """Give the nights back."""
    if booking.state == "new":
        raise Reject("there is no such booking")
    with context.session() as session:
        for night in locked(session, booking.room, booking.first, booking.nights):
            night.free += 1
    stay = {"room": booking.room, "first": booking.first, "nights": booking.nights}
    return context.follow(command, Cancelled, **stay)


@bookings.handle(Paid, category="payment")
def paid(event: Paid, booking: Booking, context: Context) -> Confirmed | None:
    """Confirm a booking that was not cancelled before."""
    return context.follow(event, Confirmed) if booking.state == "booked" else None


@bookings.project(Booked)
def booked(booking: Booking, event: Booked) -> None:
    booking.state = "booked"
    booking.room, booking.first, booking.nights = event.room, event.first, event.nights


@bookings.project(Confirmed)
def confirmed(booking: Booking, event: Confirmed) -> None:
    booking.state = "confirmed"


@bookings.project(Cancelled)
def cancelled(booking: Booking, event: Cancelled) -> None:
    booking.state = "cancelled"
