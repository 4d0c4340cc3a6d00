"""The messages of the hotel: those of bookings, and those of payments."""

from datetime import date

from pydantic import BaseModel, ConfigDict, Field


class Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class Book(Message):
    """A guest wants a room for some nights."""

    booking_id: str
    guest_id: str
    room: str
    first: date
    nights: int = Field(ge=1, le=30)


class Booked(Message):
    booking_id: str
    guest_id: str
    room: str
    first: date
    nights: int
    cents: int


class Cancel(Message):
    booking_id: str
    reason: str


class Cancelled(Message):
    booking_id: str
    room: str
    first: date
    nights: int
    reason: str


class Confirmed(Message):
    """The booking is paid."""

    booking_id: str
    receipt: str


class Pay(Message):
    """Pay for a booking, which is paid once, so its id is the payment's."""

    booking_id: str
    guest_id: str
    cents: int


class Paid(Message):
    booking_id: str
    cents: int
    receipt: str
