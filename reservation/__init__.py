"""Commands that take effect once, however often they are sent."""

from reservation.component import Component
from reservation.context import Context
from reservation.errors import ReservationError
from reservation.idempotence.in_events.message_id import MessageIdInEvents
from reservation.idempotence.in_events.position import PositionInEvents
from reservation.idempotence.processed import Processed
from reservation.idempotence.reserve import Outcome
from reservation.idempotence.revision import Revisions
from reservation.idempotence.revision_counters import ClockRevisions, DatabaseRevisions
from reservation.idempotence.state_based.strategy import StateBased
from reservation.messages import stream_name
from reservation.messages.message import StoredMessage, follow
from reservation.messages.metadata import Metadata
from reservation.messages.pseudo_event import PseudoEvent
from reservation.store.async_client import AsyncMessageStore
from reservation.store.client import MessageStore
from reservation.store.schema.install import install
from reservation.store.statements import NO_STREAM
from reservation.store.writing import Write

# The former name of `PositionInEvents`.
Sequence = PositionInEvents

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
    "PositionInEvents",
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
