"""Dead letters: the messages that a consumer passed without having dealt with them.

They are written in the transaction of the batch that passes them. Of each entity the open letters
are a line, in the order of the log: the first is dead or about to be retried, the others are parked
behind it. Only the holder of their partition adds letters and handles them; people change states
only (`consumers.dead_letters.administration`), and each side holds off the other while it does.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from consumers.dead_letters.failure import Failure, Letter
from consumers.runtime.session import process_name
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.dead_letters")


class LettersChanged(Exception):
    """Somebody changed the state of letters that are being retried; look at them again."""


@dataclass(frozen=True, slots=True)
class DueLetter:
    """A letter that is to be handled now.

    Attributes:
        global_position: that of the message.
        entity: whose line it is in; None if nothing waits behind it.
        attempts: how often it was tried on its own since it was asked for.
        partition: that of the message.
        message: it; None if it is in the store no more.
    """

    global_position: int
    entity: str | None
    attempts: int
    partition: int
    message: StoredMessage | None

    @property
    def told(self) -> str:
        """What names the message in errors."""
        if self.message is not None:
            return str(self.message)
        return f"The message at global position {self.global_position}"


class DeadLetters:
    """The dead letters of one consumer's category."""

    def __init__(self, consumer: str, category: str) -> None:
        """Prepare.

        Args:
            consumer: the component's name.
            category: the category that is read.
        """
        self._names = {"consumer": consumer, "category": category, "process": process_name()}

    def blocked(
        self, connection: Connection[Any], partitions: Collection[int], size: int
    ) -> set[str]:
        """Return the entities that have open letters.

        Args:
            connection: to read on.
            partitions: those to look at.
            size: how many partitions the group has.
        """
        rows = self._query(connection, "blocked", {"partitions": list(partitions), "size": size})
        return {row[0] for row in rows}

    def record(self, connection: Connection[Any], letters: Sequence[Letter]) -> set[str]:
        """Write the letters of a batch, in the transaction that passes their messages.

        Returns:
            The entities that are blocked by them.
        """
        self._query(connection, "watch")
        columns: dict[str, list[Any]] = {  # Any: what the column takes
            "global_positions": [one.message.global_position for one in letters],
            "message_ids": [one.message.id for one in letters],
            "stream_names": [one.message.stream_name for one in letters],
            "types": [one.message.type for one in letters],
            "entities": [one.entity for one in letters],
            "reasons": [one.failure.reason.value for one in letters],
            "errors": [one.failure.error or None for one in letters],
            "digests": [one.failure.digest for one in letters],
            "attempts": [one.attempts for one in letters],
        }
        self._run(connection, "record", columns)
        return self.call_next(connection, {one.entity for one in letters if one.entity})

    def call_next(self, connection: Connection[Any], entities: Collection[str]) -> set[str]:
        """Have the first open letter of each entity handled next, unless it is dead.

        Returns:
            Those of the entities that have open letters.
        """
        if not entities:
            return set()
        rows = self._query(connection, "call_next", {"entities": sorted(entities)})
        return {row[0] for row in rows}

    def line_up(
        self, connection: Connection[Any], partitions: Collection[int], size: int, limit: int
    ) -> list[DueLetter]:
        """Return the letters that are to be handled, in the order of the log.

        Args:
            connection: to read on.
            partitions: those to look at.
            size: how many partitions the group has.
            limit: how many to return at most.
        """
        rows = self._query(
            connection,
            "line_up",
            {"partitions": list(partitions), "size": size, "limit": limit},
        )
        letters = []
        for position, entity, attempts, partition, *message in rows:
            stored = None if message[0] is None else StoredMessage(*message)
            letters.append(DueLetter(position, entity, attempts, partition, stored))
        return letters

    def attempt(self, connection: Connection[Any], letter: DueLetter) -> int:
        """Note, before it begins, that a letter is tried on its own; return how often it was now.

        Raises:
            LettersChanged: it is not to be retried any more.
        """
        with translated(), connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = off")
            self._query(connection, "watch")
            rows = self._query(connection, "attempt", {"global_position": letter.global_position})
        if not rows:
            raise LettersChanged
        return int(rows[0][0])

    def take_back(self, connection: Connection[Any], letter: DueLetter) -> None:
        """Note that the last attempt at a letter came to no end, for no fault of its message."""
        with translated(), connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = off")
            self._query(connection, "watch")
            self._run(connection, "take_back", {"global_position": letter.global_position})

    def settle(self, connection: Connection[Any], letters: Sequence[DueLetter]) -> None:
        """Note that letters are handled, in the transaction that writes what they bring about.

        Raises:
            LettersChanged: some of them are not to be retried any more.
        """
        self._query(connection, "watch")
        positions = [one.global_position for one in letters]
        if self._run(connection, "settle", {"global_positions": positions}) != len(letters):
            raise LettersChanged

    def bury_again(
        self,
        connection: Connection[Any],
        letter: DueLetter,
        failure: Failure,
        *,
        entity: str | None,
        attempts: int,
    ) -> None:
        """Note that a letter is dead after all.

        Args:
            connection: in a transaction.
            letter: it.
            failure: why.
            entity: the entity that it blocks from now on.
            attempts: how often it was tried.

        Raises:
            LettersChanged: it is not to be retried any more.
        """
        self._query(connection, "watch")
        changed = self._run(
            connection,
            "bury_again",
            {
                "global_position": letter.global_position,
                "entity": entity,
                "reason": failure.reason.value,
                "error": failure.error,
                "digest": failure.digest,
                "attempts": attempts,
            },
        )
        if changed != 1:
            raise LettersChanged

    def _query(
        self, connection: Connection[Any], query: str, values: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        with translated():
            return connection.execute(_QUERIES[query], {**self._names, **(values or {})}).fetchall()

    def _run(self, connection: Connection[Any], query: str, values: Mapping[str, Any]) -> int:
        with translated():
            return connection.execute(_QUERIES[query], {**self._names, **values}).rowcount
