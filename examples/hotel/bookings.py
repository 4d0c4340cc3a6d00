"""Bookings: rooms are taken in the hotel's own tables, in the transaction of the event."""

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal

from sqlalchemy import select

from hotel.messages import Book, Booked, Cancel, Cancelled, Confirmed, Paid, Pay
from hotel.tables import PRICES, Night
from reservation import Component, Context, Reject


@dataclass
class Booking:
    """What the events say about a booking."""

    state: Literal["new", "booked", "confirmed", "cancelled"] = "new"
    room: str = ""
    first: date | None = None
    nights: int = 0


bookings = Component("booking", entity=Booking, id="booking_id")


@bookings.initiate(Book)
def book(command: Book, context: Context) -> Booked:
    """Take the nights, or reject the booking, and ask for the money."""
    with context.session() as session:
        last = command.first + timedelta(days=command.nights - 1)
        nights = session.scalars(
            select(Night)
            .where(Night.room == command.room, Night.night.between(command.first, last))
            .order_by(Night.night)
            .with_for_update()
        ).all()
        if len(nights) < command.nights or any(night.free == 0 for night in nights):
            raise Reject(f"no {command.room} is free in these nights")
        for night in nights:
            night.free -= 1
    cents = PRICES[command.room] * command.nights
    booked = context.follow(command, Booked, cents=cents)
    context.write(context.follow(booked, Pay), f"payment:command-{command.booking_id}")
    return booked


@bookings.handle(Cancel, once=None)
def cancel(command: Cancel, booking: Booking, context: Context) -> Cancelled | None:
    """Give the nights back, unless that was done before."""
    if booking.state in ("new", "cancelled"):
        return None
    assert booking.first is not None
    last = booking.first + timedelta(days=booking.nights - 1)
    with context.session() as session:
        for night in session.scalars(
            select(Night)
            .where(Night.room == booking.room, Night.night.between(booking.first, last))
            .order_by(Night.night)
            .with_for_update()
        ):
            night.free += 1
    return Cancelled(
        booking_id=command.booking_id,
        room=booking.room,
        first=booking.first,
        nights=booking.nights,
        reason=command.reason,
    )


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
