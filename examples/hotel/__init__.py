"""A hotel: rooms that are booked, payments, and a read model of what is taken.

The components are ``hotel:bookings`` and ``hotel:payments``, the read model is
``hotel:occupancy``, and the web app is ``hotel.web:app``.
"""

from hotel.bookings import bookings
from hotel.occupancy import occupancy
from hotel.payments import payments

__all__ = ["bookings", "occupancy", "payments"]
