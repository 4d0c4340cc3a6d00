"""The messages that one consumer could not handle, in ``reservation.dead_letters``.

They are written in the transaction of the batch that passes them, by the holder of their partition,
who also handles them when they are due. People only change states
(`consumers.dead_letters.administration`). A lock keeps the two from doing so at the same time.

The open letters of an entity may be in partitions of several holders, and nobody sees what others
have not committed. So everybody looks for due letters after each commit that wrote or finished
letters, when partitions are taken, and at intervals: of two that commit at the same time, one sees
both.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from consumers.failures.failure import Failure, Reason, Unhandled
from consumers.runtime.session import process_name
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import environmental, translated
from reservation.postgres.exchange.request import Request
from reservation.postgres.json_parameter import json_parameter
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.failures")


class LettersChanged(Exception):
    """Somebody changed letters while they were handled; look at them again."""


@dataclass(frozen=True, slots=True)
class DueLetter:
    """A letter that is to be handled now.

    Attributes:
        message: the message, as it was sent.
        is_missing: whether that is no longer in the store, so that only its place is known.
        entity: whose queue it is in; None if nothing waits behind it.
        attempts: how often it was tried before.
        partition: that of the message.
        is_limited: whether it has waited for a rate.
        correction: identifies the data that it was given; None if it was given none.
        data: that data, as JSON.
    """

    message: StoredMessage
    is_missing: bool
    entity: str | None
    attempts: int
    partition: int
    is_limited: bool
    correction: int | None
    data: str | None

    @property
    def global_position(self) -> int:
        """That of the message."""
        return self.message.global_position


@dataclass(frozen=True, slots=True)
class Due:
    """The due letters that a look found.

    Attributes:
        letters: those that are due, in the order of the log, up to a limit.
        more: whether there are others.
        next_in: seconds until another one is due; None if none has a time.
    """

    letters: Sequence[DueLetter]
    more: bool
    next_in: float | None


class DeadLetters:
    """The letters of one consumer's category."""

    def __init__(self, consumer: str, category: str) -> None:
        self._names = {"consumer": consumer, "category": category, "process": process_name()}

    def blocked(
        self, connection: Connection[Any], partitions: Collection[int], size: int
    ) -> set[str]:
        """Return the entities that have open letters in some partitions."""
        rows = self._query(connection, "blocked", {"partitions": list(partitions), "size": size})
        return {row[0] for row in rows}

    @property
    def has_open(self) -> Request:
        """Asks whether there may be a letter behind which messages wait."""
        return Request(_QUERIES["has_open"], self._names)

    def heads(self, connection: Connection[Any], entities: Collection[str]) -> dict[str, int]:
        """Return the position of the first open letter of each entity that has any."""
        if not entities:
            return {}
        return dict(self._query(connection, "heads", {"entities": sorted(entities)}))

    def due(
        self,
        connection: Connection[Any],
        partitions: Collection[int],
        size: int,
        limit: int,
        *,
        limited: int = 1,
        parked: bool = True,
        running: Collection[int] = (),
        only: Collection[int] | None = None,
    ) -> Due:
        """Look for letters that are due: the heads of queues, with what is parked behind each.

        A queue whose head waited for a rate gives so many letters at most (`limited`).

        Letters whose calls go on in this process are left out, and so are all but those in `only`.
        Finding heads that are parked takes long if very many entities have parked letters.
        """
        values = {
            "partitions": list(partitions),
            "size": size,
            "limit": limit,
            "limited": min(limited, limit),
            "parked": limit + len(running) if parked else 0,
            "running": list(running),
            "only": None if only is None else list(only),
        }
        rows = self._query(connection, "due", values)
        letters, next_in = list[DueLetter](), rows[0][0]
        for _, due, *row in rows:
            if due is None:  # none is due
                continue
            entity, attempts, partition, is_missing, is_limited, correction, data, *message = row
            stored = StoredMessage(*message)
            state = entity, attempts, partition, is_limited, correction, data
            letters.append(DueLetter(stored, is_missing, *state))
        more = bool(letters) and rows[0][1] >= min(limit, len(letters) + 1)
        return Due(letters, more, None if next_in is None else max(float(next_in), 0.0))

    def partitions(
        self, connection: Connection[Any], streams: Mapping[int, str], size: int
    ) -> dict[int, int]:
        """Return the partitions of messages, which are given by global positions and streams."""
        values = {
            "global_positions": list(streams),
            "stream_names": list(streams.values()),
            "size": size,
        }
        return dict(self._query(connection, "partitions", values))

    def waiting(self, connection: Connection[Any], partitions: Collection[int], size: int) -> int:
        """Return how many messages wait for their next attempt."""
        values = {"partitions": list(partitions), "size": size}
        ((number,),) = self._query(connection, "waiting", values)
        return int(number)

    def recording(
        self,
        letters: Sequence[Unhandled],
        key_fields: Callable[[str], Sequence[str] | None] = lambda _: None,
    ) -> list[Request]:
        """Return the requests that record what a batch set aside, in its transaction."""
        if not letters:
            return []
        columns = {
            "message_ids": [letter.message.id for letter in letters],
            "stream_names": [letter.message.stream_name for letter in letters],
            "types": [letter.message.type for letter in letters],
            "states": [letter.state for letter in letters],
            **_columns([(one.message.global_position, one.entity, one.failure) for one in letters]),
            "have_waited": [False] * len(letters),
        }
        fields = {letter.message.type: key_fields(letter.message.type) for letter in letters}
        values = {**self._names, **columns, "key_fields": json_parameter(fields)}
        return [
            Request(_QUERIES["watch"], (), failed=environmental),
            Request(_QUERIES["record"], values, failed=environmental),
        ]

    def count_attempt(self, connection: Connection[Any], letter: DueLetter) -> int:
        """Count an attempt at a letter that may end the process, before it begins."""
        rows = self._count(connection, letter, 1)
        if not rows:
            raise LettersChanged
        return int(rows[0][0])

    def uncount_attempt(self, connection: Connection[Any], letter: DueLetter) -> None:
        """Uncount the last attempt at a letter, which did not end because of its message."""
        self._count(connection, letter, -1)

    def mark_handled(self, connection: Connection[Any], letters: Sequence[DueLetter]) -> None:
        """Mark letters as handled, in the transaction that writes their effects."""
        self._query(connection, "watch")
        if self._run(connection, "mark_handled", _read_as(letters)) != len(letters):
            raise LettersChanged

    def fail_again(
        self, connection: Connection[Any], failed: Sequence[tuple[DueLetter, str | None, Failure]]
    ) -> None:
        """Mark letters dead or waiting again, each with the entity that it blocks."""
        self._query(connection, "watch")
        columns = _columns(
            [(letter.global_position, entity, failure) for letter, entity, failure in failed]
        )
        read_as = _read_as([letter for letter, _, _ in failed])
        have_waited = {"have_waited": [letter.is_limited for letter, _, _ in failed]}
        changed = self._run(connection, "fail_again", {**columns, **read_as, **have_waited})
        if changed != len(failed):
            raise LettersChanged

    def _count(
        self, connection: Connection[Any], letter: DueLetter, by: int
    ) -> list[tuple[Any, ...]]:
        with translated(), connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = off")
            self._query(connection, "watch")
            values = {"global_position": letter.global_position, "by": by}
            return self._query(connection, "count_attempt", values)

    def _query(
        self, connection: Connection[Any], query: str, values: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        with translated():
            return connection.execute(_QUERIES[query], {**self._names, **(values or {})}).fetchall()

    def _run(self, connection: Connection[Any], query: str, values: Mapping[str, Any]) -> int:
        with translated():
            return connection.execute(_QUERIES[query], {**self._names, **values}).rowcount


# Any: what the columns take.
def _columns(failed: Sequence[tuple[int, str | None, Failure]]) -> dict[str, list[Any]]:
    """Return the parameters that say which messages failed, and why."""
    failures = [failure for _, _, failure in failed]
    return {
        "global_positions": [position for position, _, _ in failed],
        "entities": [entity for _, entity, _ in failed],
        "reasons": [failure.reason.value for failure in failures],
        "errors": [failure.error or None for failure in failures],
        "error_types": [failure.error_type for failure in failures],
        "error_places": [failure.error_place for failure in failures],
        "error_texts": [failure.error_text for failure in failures],
        "error_tracebacks": [failure.error_traceback for failure in failures],
        "digests": [failure.digest for failure in failures],
        "attempts": [failure.attempts for failure in failures],
        # What waits for a breaker is due when that lets it, which is not stored with the letter.
        "waits": [0.0 if one.reason is Reason.BREAKER else one.wait for one in failures],
        "rates": [failure.rate for failure in failures],
        "intervals": [failure.interval for failure in failures],
    }


def _read_as(letters: Sequence[DueLetter]) -> dict[str, list[Any]]:
    """Return the parameters that say which letters were read, and with which data."""
    return {
        "global_positions": [letter.global_position for letter in letters],
        "corrections": [letter.correction for letter in letters],
    }
