"""The breakers of handlers, as the store knows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from psycopg import Connection

from consumers.group.inspection.stored_positions import ConsumerId
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.group.inspection", "status.sql")


@dataclass(frozen=True, slots=True)
class BreakerStatus:
    """A handler's breaker.

    Attributes:
        consumer: the component's name.
        category: the category that the handler's messages are read from.
        type: their type.
        state: ``open``, ``half_open`` while a message tries, or ``closed``.
        since: when it opened; None if it is closed.
        until: when a message may try; None if it is closed.
        error_type: the class of the exception that opened it last; None if it is closed.
    """

    consumer: str
    category: str
    type: str
    state: Literal["open", "half_open", "closed"]
    since: datetime | None
    until: datetime | None
    error_type: str | None

    @property
    def is_open(self) -> bool:
        """Whether messages wait for it."""
        return self.state != "closed"


def read_breakers(
    connection: Connection[Any], reads: Sequence[ConsumerId] | None = None
) -> list[BreakerStatus]:
    """Return the breakers of all consumers, or of some."""
    named = {
        "consumers": None if reads is None else [consumer for consumer, _ in reads],
        "categories": None if reads is None else [category for _, category in reads],
    }
    with translated():
        rows = connection.execute(_QUERIES["breakers"], named).fetchall()
    return [BreakerStatus(*row) for row in rows]
