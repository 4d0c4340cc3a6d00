"""Reading a store for a story: one snapshot, a limit of time, and no way but the indexes."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from psycopg import Connection
from psycopg.pq import TransactionStatus

from reservation.messages.message import StoredMessage
from reservation.postgres.arrays import IntArray, TextArray, fetch_all
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.story.search")
_COLUMNS = _QUERIES.pop("message")
_QUERIES = {name: query.replace(b"/* message */", _COLUMNS) for name, query in _QUERIES.items()}

# The longest that one statement may take.
MILLISECONDS = 3_000

MOST_CATEGORIES = 500


@dataclass(eq=False)
class Reading:
    """Statements that read messages, on one snapshot.

    Attributes:
        connection: in the transaction that `reading` began.
    """

    connection: Connection[Any]
    _of_type: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)

    def rows(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        """Return what a statement of ``queries.sql`` gives.

        Raises:
            StatementCanceledError: it took longer than is allowed.
            StoreError: the database refuses, or is away.
        """
        return fetch_all(self.connection, _QUERIES[query], values)

    def messages(self, query: str, **values: object) -> list[StoredMessage]:
        """Return the messages that a statement gives; see `rows`."""
        return [StoredMessage(*row) for row in self.rows(query, **values)]

    def at(self, positions: Collection[int]) -> list[StoredMessage]:
        """Return the messages at some global positions, in order."""
        if not positions:
            return []
        return self.messages("at_positions", positions=IntArray(sorted(positions)))

    def first_of(self, streams: Sequence[str]) -> dict[str, StoredMessage]:
        """Return the first message of each of some streams, by the stream."""
        if not streams:
            return {}
        found = self.messages("first_of_streams", streams=TextArray(streams))
        return {message.stream_name: message for message in found}

    @cached_property
    def end_of_log(self) -> int:
        """The last global position."""
        return int(self.rows("end_of_log")[0][0])

    @cached_property
    def categories(self) -> list[str]:
        """The categories of the store, at most `MOST_CATEGORIES` of them."""
        return [row[0] for row in self.rows("categories", limit=MOST_CATEGORIES)]

    def reservations_of_type(self, name: str) -> list[tuple[Any, ...]]:
        """Return some copies of commands of a type.

        Returns:
            The category and the stream of each copy, and the stream and the data of its command.
        """
        if name not in self._of_type:
            self._of_type[name] = self.rows(
                "reservations_of_type", categories=TextArray(self.categories), type=name, limit=10
            )
        return self._of_type[name]

    def causes_of(self, message: StoredMessage, most: int = 20) -> list[StoredMessage]:
        """Return what a message follows from, what that follows from, and so on.

        Args:
            message: the message.
            most: how many of them.
        """
        causes: list[StoredMessage] = []
        while len(causes) < most:
            cause = cause_of(message)
            # What a message follows from was stored before it; anything else is another log's.
            if cause is None or cause >= message.global_position:
                break
            found = self.at([cause])
            if not found or found[0].stream_name != message.metadata.causation_message_stream_name:
                break
            message = found[0]
            causes.append(message)
        return causes


def cause_of(message: StoredMessage) -> int | None:
    """Return the global position of what a message follows from, if it says so."""
    position = message.metadata.causation_message_global_position
    return position if position is not None and 0 < position < 2**63 else None


@contextmanager
def reading(connection: Connection[Any]) -> Iterator[Reading]:
    """Read a store in one snapshot, without writing.

    Args:
        connection: of a role with an auditor's rights; in a transaction whose snapshot is used, or
            in autocommit.

    Raises:
        StoreError: the database refuses, or is away.
    """
    is_idle = connection.info.transaction_status is TransactionStatus.IDLE
    with translated(), connection.transaction():
        if is_idle:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(_QUERIES["settings"])
        connection.execute(_QUERIES["timeout"], {"milliseconds": MILLISECONDS})
        yield Reading(connection)
