"""Looking up corrections: the data with which messages are handled in the place of their own.

The dead letter of a message keeps it, for whenever the message is handled: as a letter, or when it
is read again after the position was set back. Messages beyond the last letter have none, so nothing
is looked up where nothing has failed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from psycopg import Connection

from consumers.group.positions import HeldPartitions
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import translated
from reservation.postgres.json_parameter import json_parameter
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.dead_letters", "corrections.sql")


class Corrections:
    """The corrections of the messages of one consumer's category."""

    def __init__(self, consumer: str, category: str, ignoring: Mapping[str, Sequence[str]]) -> None:
        self._names = {"consumer": consumer, "category": category}
        self._ignoring = ignoring
        self._known: object = None  # the claims that `_until` is of
        self._until = 0

    def of(
        self,
        connection: Connection[Any],
        positions: HeldPartitions,
        messages: Sequence[StoredMessage],
    ) -> dict[int, str]:
        """Return the corrected data of those messages that have a correction.

        Where there may be any, no correction is written until the transaction ends.
        """
        if self._known != positions.claims:
            rows = self._query(connection, "until", {})
            self._until, self._known = rows[0][0] or 0, positions.claims
        if not messages or messages[0].global_position > self._until:
            return {}
        self._query(connection, "watch", {})
        values = {
            "global_positions": [message.global_position for message in messages],
            "message_ids": [message.id for message in messages],
        }
        return dict(self._query(connection, "of_messages", values))

    def has_none_after(self, positions: HeldPartitions, global_position: int) -> bool:
        """Return whether no message after a global position is corrected, as far as is known."""
        return self._known == positions.claims and global_position >= self._until

    def has_reissues(self, message: StoredMessage) -> bool:
        """Return whether a message may be a reissue of another one."""
        return message.type in self._ignoring

    def of_reissues(
        self, connection: Connection[Any], messages: Sequence[StoredMessage]
    ) -> dict[int, str]:
        """Return the corrected data of those messages that say what a corrected message said.

        A sender may send the original again, although it cannot be decoded. What was corrected once
        is corrected in the same way.
        """
        positions = [message.global_position for message in messages if self.has_reissues(message)]
        values = {"global_positions": positions, "ignoring": json_parameter(self._ignoring)}
        return dict(self._query(connection, "of_reissues", values))

    def _query(
        self, connection: Connection[Any], query: str, values: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        with translated():
            return connection.execute(_QUERIES[query], {**self._names, **values}).fetchall()


class CorrectedReissues:
    """Messages of one batch that say what a corrected message said; looked up if one fails.

    Attributes:
        found: by global position, the corrected data of those that were asked for.
    """

    def __init__(
        self,
        corrections: Corrections,
        connection: Connection[Any],
        messages: Sequence[StoredMessage],
    ) -> None:
        self._corrections = corrections
        self._connection = connection
        self._messages = messages
        self._reissues: dict[int, str] | None = None
        self.found: dict[int, str] = {}

    def data_of(self, message: StoredMessage) -> str | None:
        """Return the corrected data of a message that cannot be decoded; None if it has none."""
        if not self._corrections.has_reissues(message):
            return None
        if self._reissues is None:
            self._reissues = self._corrections.of_reissues(self._connection, self._messages)
        data = self._reissues.get(message.global_position)
        if data is not None:
            self.found[message.global_position] = data
        return data


def with_data(message: StoredMessage, data: str) -> StoredMessage:
    """Return a message with other data."""
    return replace(message, data=data)
