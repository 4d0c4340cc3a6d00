"""Commands that take effect once, however often they are sent."""

from reservation import stream_name
from reservation.component import Component, Context
from reservation.errors import ReservationError
from reservation.idempotence.reserve import Outcome
from reservation.message import StoredMessage, follow
from reservation.metadata import Metadata
from reservation.store.client import NO_STREAM, MessageStore, Write
from reservation.store.install import install

__all__ = [
    "NO_STREAM",
    "Component",
    "Context",
    "MessageStore",
    "Metadata",
    "Outcome",
    "ReservationError",
    "StoredMessage",
    "Write",
    "follow",
    "install",
    "stream_name",
]
