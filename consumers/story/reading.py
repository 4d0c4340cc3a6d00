"""Reading a store for a story: one snapshot, a limit of time, and no way but the indexes."""

import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from msgspec.structs import replace
from psycopg import Connection
from psycopg.pq import TransactionStatus

from reservation.messages.message import StoredMessage, json_to_show
from reservation.postgres.arrays import IntArray, TextArray, UuidArray, fetch_all
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.story")
_COLUMNS = _QUERIES.pop("message")
_QUERIES = {name: query.replace(b"/* message */", _COLUMNS) for name, query in _QUERIES.items()}

MILLISECONDS = 3_000  # the longest that one statement may take

_MOST_CAUSES = 20


@dataclass(eq=False)
class Reading:
    """Reads on one snapshot; `notes` says what could not be read.

    Each of them raises StatementCanceledError if it takes too long, and StoreError if the database
    refuses, or is away.
    """

    connection: Connection[Any]
    notes: dict[int, str] = field(default_factory=dict)  # by the global position of a message

    def rows(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        return fetch_all(self.connection, _QUERIES[query], values)

    def messages(self, query: str, **values: object) -> list[StoredMessage]:
        """Return the messages that a statement gives."""
        return [self._shown(StoredMessage(*row)) for row in self.rows(query, **values)]

    def _shown(self, message: StoredMessage) -> StoredMessage:
        if (reason := message.unreadable) is None:
            return message
        self.notes[message.global_position] = f"{message}, cannot be read: {reason}."
        data, metadata = json_to_show(message.data), json_to_show(message.metadata_json)
        return replace(message, data=data, metadata_json=metadata)

    def at(self, positions: Collection[int]) -> list[StoredMessage]:
        """Return the messages at some global positions."""
        return self.messages("at_positions", positions=IntArray(sorted(positions)))

    def by_ids(self, ids: Sequence[uuid.UUID]) -> list[StoredMessage]:
        """Return the messages of some ids."""
        return self.messages("by_id", ids=UuidArray(ids))

    def first_of(self, streams: Collection[str]) -> list[StoredMessage]:
        """Return the messages at position 0 of some streams."""
        return self.messages("first_of_streams", streams=TextArray(list(streams)))

    @cached_property
    def end_of_log(self) -> int:
        """The last global position."""
        return int(self.rows("end_of_log")[0][0])

    @cached_property
    def groups(self) -> list[tuple[str, str]]:
        """The consumers that there are, each with the category that it reads."""
        return [(consumer, category) for consumer, category in self.rows("groups")]

    def causes_of(self, message: StoredMessage, most: int = _MOST_CAUSES) -> list[StoredMessage]:
        """Return what a message follows from, what that follows from, and so on."""
        causes: list[StoredMessage] = []
        while len(causes) < most:
            position = cause_of(message)
            # A cause comes before its effect; what says otherwise could go round in a circle.
            if position is None or position >= message.global_position:
                break
            stream = message.metadata.causation_message_stream_name
            found = [one for one in self.at([position]) if one.stream_name == stream]
            if not found:
                self.notes[message.global_position] = (
                    f"{message}, follows from the message at global position {position}, which is "
                    f"no longer in the store."
                )
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
    """Read a store in one snapshot, without writing; see `consumers.story.story.read_story`."""
    is_idle = connection.info.transaction_status is TransactionStatus.IDLE
    with translated(), connection.transaction():
        if is_idle:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(_QUERIES["settings"], {"milliseconds": MILLISECONDS})
        yield Reading(connection)
