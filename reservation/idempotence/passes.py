"""Recording the messages of a subscribed category that no event followed from.

A row in ``reservation.passes`` is the evidence that such a message was handled: `Followed`
recognizes it by that, and a reconciliation counts it.
"""

import uuid
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from reservation.messages.message import StoredMessage
from reservation.postgres.arrays import IntArray, TextArray
from reservation.postgres.error_translation import translation
from reservation.postgres.exchange.request import Request
from reservation.postgres.queries import load_queries
from reservation.store.writing.write import Row

_QUERIES = load_queries("reservation.idempotence", "passes.sql")


class PassReason(StrEnum):
    """The reason that no event followed."""

    NOTHING = "nothing"  # its handler decided on nothing
    WRITTEN = "written"  # its handler only wrote messages to other streams
    DUPLICATE = "duplicate"  # a strategy recognized it, so its handler was not called


class Pass(NamedTuple):
    """A message that no event followed from, and why.

    Attributes:
        message: the message.
        reason: why no event followed.
        follower: the id of the first message that the handler wrote; None if it wrote none. A
            reconciliation looks for it in the log.
    """

    message: StoredMessage
    reason: PassReason
    follower: uuid.UUID | None = None

    @classmethod
    def handled(cls, message: StoredMessage, written: Sequence[Row]) -> "Pass":
        """Return the pass of a message whose handler decided on no event."""
        if not written:
            return cls(message, PassReason.NOTHING)
        return cls(message, PassReason.WRITTEN, written[0].id)


def record_passes(consumer: str, category: str, passes: Sequence[Pass]) -> Request:
    """Return the statement that records messages."""
    followers = [None if one.follower is None else str(one.follower) for one in passes]
    values = {
        "consumer": consumer,
        "category": category,
        "positions": IntArray([one.message.global_position for one in passes]),
        "ids": TextArray([one.message.id for one in passes]),
        "reasons": TextArray([one.reason.value for one in passes]),
        "followers": followers,
    }
    return Request(_QUERIES["record"], values, failed=translation)
