"""The positions as they are stored, one for each partition of what a consumer reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import Connection
from psycopg.rows import kwargs_row

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.group.inspection", "stored_positions.sql")


ConsumerId = tuple[str, str]  # a consumer, and the category that it reads


@dataclass(frozen=True, slots=True)
class Holder:
    """The member that may move a partition's position.

    Attributes:
        process: its host and process id; None if that is no longer known.
        gone: whether it ended without giving the partition back, and nobody has taken over yet.
    """

    process: str | None
    gone: bool


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """A consumer's position in a partition of a category.

    Attributes:
        consumer: the component's name.
        category: the category that it reads.
        partition: the number of the partition, from 0.
        partitions: how many the category is in for this consumer.
        former_positions: the positions of the former partitions, up to which a message was handled;
            None if there were never others, or all were at one position.
        position: the global position of the last message handled; 0 before the first.
        message_id: the id of the message there; None at 0, and if it is not known.
        foreign: whether the position was taken in another log, so that it means nothing here.
        epoch: how often the partition changed hands; 0 if the consumer was never run.
        holder: who may move the position; None if nobody.
        updated_at: when it was last written; None if the consumer was never run.
    """

    consumer: str
    category: str
    partition: int
    partitions: int
    former_positions: Sequence[int] | None
    position: int
    message_id: UUID | None
    epoch: int
    foreign: bool
    holder: Holder | None
    updated_at: datetime | None


def categories(component: Component) -> list[str]:
    """Return the categories that a component's consumers read, those of its own first."""
    declared = declarations(component)
    subscribed = declared.subscribed_categories
    if subscribed and not declared.own.handled:
        return subscribed
    return [*declared.own_categories, *subscribed]


def reads_of(component: Component) -> list[ConsumerId]:
    """Return a component's consumers, each with the category that it reads."""
    return [(component.name, category) for category in categories(component)]


def read_positions(
    connection: Connection[Any], reads: Sequence[ConsumerId] | None = None
) -> list[StoredPosition]:
    """Return the positions of consumers."""
    named = {
        "consumers": None if reads is None else [consumer for consumer, _ in reads],
        "categories": None if reads is None else [category for _, category in reads],
    }
    with translated(), connection.cursor(row_factory=kwargs_row(_stored)) as cursor:
        return cursor.execute(_QUERIES["stored"], named).fetchall()


def is_drained(connection: Connection[Any], consumer: str, category: str) -> bool:
    """Return whether a consumer has nothing left to handle in a category, in any process.

    That is every message, and every dead letter that is to be handled again.
    """
    with translated():
        rows = connection.execute(
            _QUERIES["is_drained"], {"consumer": consumer, "category": category}
        ).fetchall()
    return bool(rows[0][0])


def _stored(
    *,
    held: bool,
    process: str | None,
    gone: bool,
    **rest: Any,  # Any: the other columns, each under the name of its attribute
) -> StoredPosition:
    return StoredPosition(holder=Holder(process, gone) if held else None, **rest)
