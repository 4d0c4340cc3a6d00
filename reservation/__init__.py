"""Commands that take effect once, however often they are sent."""

from reservation import stream_name
from reservation.component import Component
from reservation.context import Context
from reservation.errors import ReservationError
from reservation.idempotence.counters import ClockRevisions, DatabaseRevisions
from reservation.idempotence.message_id import MessageIdInEvents
from reservation.idempotence.processed import Processed
from reservation.idempotence.pseudo_event import PseudoEvent
from reservation.idempotence.reserve import Outcome
from reservation.idempotence.revision import Revisions
from reservation.idempotence.sequence import Sequence
from reservation.idempotence.state_based import StateBased
from reservation.message import StoredMessage, follow
from reservation.metadata import Metadata
from reservation.store.async_client import AsyncMessageStore
from reservation.store.client import MessageStore
from reservation.store.install import install
from reservation.store.statements import NO_STREAM
from reservation.store.writing import Write

__all__ = [
    "NO_STREAM",
    "AsyncMessageStore",
    "ClockRevisions",
    "Component",
    "Context",
    "DatabaseRevisions",
    "MessageIdInEvents",
    "MessageStore",
    "Metadata",
    "Outcome",
    "Processed",
    "PseudoEvent",
    "ReservationError",
    "Revisions",
    "Sequence",
    "StateBased",
    "StoredMessage",
    "Write",
    "follow",
    "install",
    "stream_name",
]
