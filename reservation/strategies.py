"""The strategies by which a repeated command is recognized, for ``once=``.

Commands with a key need none of them. The page on strategies in the documentation compares them.
"""

from reservation.idempotence.in_events import MessageIdInEvents, PositionInEvents
from reservation.idempotence.processed import Processed
from reservation.idempotence.revision import Revisions
from reservation.idempotence.revision_counters import ClockRevisions, DatabaseRevisions
from reservation.idempotence.state_based.strategy import StateBased

__all__ = [
    "ClockRevisions",
    "DatabaseRevisions",
    "MessageIdInEvents",
    "PositionInEvents",
    "Processed",
    "Revisions",
    "StateBased",
]
