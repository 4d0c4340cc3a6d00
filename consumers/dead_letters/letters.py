"""Dead letters: the messages that a consumer passed without having handled them.

They are written in the transaction of the batch that passes them. The open letters of an entity
form a line, in the order of the log: the first is dead or about to be retried, the others are
parked behind it. Only the holder of their partition adds letters and handles them. People only
change states (`consumers.dead_letters.administration`). A lock keeps the two from doing so at the
same time.

The letters of a line may be in partitions of several holders. Each of them calls the next letter in
the transaction that ends one, where it does not see what the others have not committed. So it looks
again after its commit (`DeadLetters.look_again`): of two that commit at the same time, the later
one sees both. What is left of one that was killed in between is found by `DeadLetters.stranded`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from consumers.dead_letters.failure import Failure, Letter
from consumers.runtime.session import process_name
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import translated
from reservation.postgres.exchange.request import Request
from reservation.postgres.json_parameter import json_parameter
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.dead_letters")
_QUERIES["stranded_entities"] = b"SELECT entity FROM " + _QUERIES["stranded"] + b" AS stranded"


class LettersChanged(Exception):
    """Somebody changed the state of letters that are being retried; look at them again."""


@dataclass(frozen=True, slots=True)
class DueLetter:
    """A letter that is to be handled again now.

    Attributes:
        global_position: that of the message.
        entity: whose line it is in; None if nothing waits behind it.
        attempts: how often it was tried since the retry was requested, or ever if it has waited
            for its next attempt.
        partition: that of the message.
        correction: what distinguishes the data that it was given from others; None if it was given
            none.
        data: that data, as JSON.
        message: the message, as it was sent; None if it is no longer in the store.
        earlier: how many of the attempts were made before it began to wait.
        lined_up: how many letters were found with it, those included that are left for the next
            time because of the bytes of the messages.
    """

    global_position: int
    entity: str | None
    attempts: int
    partition: int
    correction: int | None
    data: str | None
    message: StoredMessage | None
    earlier: int = 0
    lined_up: int = 1

    @property
    def described(self) -> str:
        """The name of the message in errors."""
        if self.message is not None:
            return str(self.message)
        return f"The message at global position {self.global_position}"


@dataclass(frozen=True, slots=True)
class FailedLetter:
    """A letter whose handling failed once more.

    Attributes:
        letter: the letter.
        failure: why, and when it is tried again, if it is.
        entity: the entity that it blocks from now on; None for none.
        attempts: how often it was tried.
    """

    letter: DueLetter
    failure: Failure
    entity: str | None
    attempts: int


class DeadLetters:
    """The dead letters of one consumer's category."""

    def __init__(self, consumer: str, category: str) -> None:
        self._names = {"consumer": consumer, "category": category, "process": process_name()}

    def blocked(
        self, connection: Connection[Any], partitions: Collection[int], size: int
    ) -> set[str]:
        """Return the entities that have open letters."""
        rows = self._query(connection, "blocked", {"partitions": list(partitions), "size": size})
        return {row[0] for row in rows}

    def record(
        self,
        connection: Connection[Any],
        letters: Sequence[Letter],
        key_fields: Callable[[str], Sequence[str] | None] = lambda _: None,
    ) -> set[str]:
        """Write the letters of a batch, in the transaction that passes their messages."""
        self._query(connection, "watch")
        columns: dict[str, list[Any]] = {  # Any: what the column takes
            "global_positions": [letter.message.global_position for letter in letters],
            "message_ids": [letter.message.id for letter in letters],
            "stream_names": [letter.message.stream_name for letter in letters],
            "types": [letter.message.type for letter in letters],
            "entities": [letter.entity for letter in letters],
            "reasons": [letter.failure.reason.value for letter in letters],
            "errors": [letter.failure.error or None for letter in letters],
            **_error_columns([letter.failure for letter in letters]),
            "digests": [letter.failure.digest for letter in letters],
            "attempts": [letter.attempts for letter in letters],
            "waits": [letter.failure.wait for letter in letters],
        }
        fields = {letter.message.type: key_fields(letter.message.type) for letter in letters}
        self._run(connection, "record", {**columns, "key_fields": json_parameter(fields)})
        return self.call_next(connection, {letter.entity for letter in letters if letter.entity})

    def call_next(self, connection: Connection[Any], entities: Collection[str]) -> set[str]:
        """Mark the first open letter of each entity to be handled next, unless it is dead."""
        if not entities:
            return set()
        rows = self._query(connection, "call_next", {"entities": sorted(entities)})
        return {row[0] for row in rows}

    def look_again(self, connection: Connection[Any], entities: Collection[str]) -> set[str]:
        """Do the same in a transaction of its own, once others see what was done with letters."""
        if not entities:
            return set()
        with translated(), connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = off")
            self._query(connection, "watch")
            return self.call_next(connection, entities)

    def stranded(self, connection: Connection[Any]) -> set[str]:
        """Return the entities whose first open letter is parked, so that nobody handles it."""
        rows = self._query(connection, "stranded_entities")
        return {row[0] for row in rows}

    @property
    def has_open(self) -> Request:
        """What tells whether there may be a letter behind which messages wait."""
        return Request(_QUERIES["has_open"], self._names)

    def heads(self, connection: Connection[Any], entities: Collection[str]) -> dict[str, int]:
        """Return where the first open letter of each entity is, of those that have any."""
        return dict(self._query(connection, "heads", {"entities": sorted(entities)}))

    def line_up(
        self, connection: Connection[Any], partitions: Collection[int], size: int, limit: int
    ) -> list[DueLetter]:
        """Return the letters that are to be handled, in the order of the log."""
        rows = self._query(
            connection,
            "line_up",
            {"partitions": list(partitions), "size": size, "limit": limit},
        )
        letters = []
        for position, entity, attempts, earlier, partition, lined_up, *row in rows:
            correction, data, *message = row
            stored = None if message[0] is None else StoredMessage(*message)
            whose = position, entity, attempts, partition
            letters.append(DueLetter(*whose, correction, data, stored, earlier, lined_up))
        return letters

    def next_attempt(
        self, connection: Connection[Any], partitions: Collection[int], size: int
    ) -> float | None:
        """Return the seconds until the next attempt at a letter, 0 if it is due; None for none."""
        values = {"partitions": list(partitions), "size": size}
        ((seconds,),) = self._query(connection, "next_attempt", values)
        return None if seconds is None else max(float(seconds), 0.0)

    def waiting(self, connection: Connection[Any], partitions: Collection[int], size: int) -> int:
        """Return how many letters wait for their next attempt; see `next_attempt`."""
        values = {"partitions": list(partitions), "size": size}
        ((number,),) = self._query(connection, "waiting", values)
        return int(number)

    def attempt(self, connection: Connection[Any], letter: DueLetter) -> int:
        """Count an attempt to handle a letter by itself, before it begins; return the count."""
        with translated(), connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = off")
            self._query(connection, "watch")
            rows = self._query(connection, "attempt", {"global_position": letter.global_position})
        if not rows:
            raise LettersChanged
        return int(rows[0][0])

    def take_back(self, connection: Connection[Any], letter: DueLetter) -> None:
        """Uncount the last attempt at a letter, which did not end because of its message."""
        with translated(), connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = off")
            self._query(connection, "watch")
            self._run(connection, "take_back", {"global_position": letter.global_position})

    def mark_handled(self, connection: Connection[Any], letters: Sequence[DueLetter]) -> None:
        """Mark letters as handled, in the transaction that writes their effects."""
        self._query(connection, "watch")
        if self._run(connection, "mark_handled", _read_as(letters)) != len(letters):
            raise LettersChanged

    def bury_again(self, connection: Connection[Any], failed: Sequence[FailedLetter]) -> None:
        """Mark letters dead again, or waiting for another attempt."""
        self._query(connection, "watch")
        columns: dict[str, list[Any]] = {  # Any: what the column takes
            "global_positions": [one.letter.global_position for one in failed],
            "entities": [one.entity for one in failed],
            "reasons": [one.failure.reason.value for one in failed],
            "errors": [one.failure.error for one in failed],
            **_error_columns([one.failure for one in failed]),
            "digests": [one.failure.digest for one in failed],
            "attempts": [one.attempts for one in failed],
            "waits": [one.failure.wait for one in failed],
            "corrections": [one.letter.correction for one in failed],
        }
        if self._run(connection, "bury_again", columns) != len(failed):
            raise LettersChanged

    def _query(
        self, connection: Connection[Any], query: str, values: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        with translated():
            return connection.execute(_QUERIES[query], {**self._names, **(values or {})}).fetchall()

    def _run(self, connection: Connection[Any], query: str, values: Mapping[str, Any]) -> int:
        with translated():
            return connection.execute(_QUERIES[query], {**self._names, **values}).rowcount


def _error_columns(failures: Sequence[Failure]) -> dict[str, list[str | None]]:
    """Return the parameters that say what was raised, and where."""
    return {
        "error_types": [failure.error_type for failure in failures],
        "error_places": [failure.error_place for failure in failures],
        "error_texts": [failure.error_text for failure in failures],
        "error_tracebacks": [failure.error_traceback for failure in failures],
    }


def _read_as(letters: Sequence[DueLetter]) -> dict[str, Any]:
    """Return the parameters that say which letters were read, and with which data."""
    return {
        "global_positions": [letter.global_position for letter in letters],
        "corrections": [letter.correction for letter in letters],
    }
