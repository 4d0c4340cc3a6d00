"""Revision numbers: what is not newer than the last message of its entity is a duplicate.

A sender numbers its messages, higher each time. The consumer keeps the last revision for each
entity and *source* (the counter that the number is from) and discards a message whose revision is
not greater. That is one row for each entity and source, however many messages there are, so it is
kept for ever. A batch takes two statements. (Source: Uhrig, *How to make event consumers
idempotent*, 2019.)

Redelivery is recognized, and so is a reissue under a new id with the same revision. **All old
messages** are discarded: a message that is read after a newer one of its entity and source is not
handled, even if it never was. So revisions are for messages that arrive in order, or that describe
a current state.

`reservation.idempotence.revision_counters` numbers messages for their sender.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from psycopg import Connection

from reservation.errors import IdempotenceKeyError
from reservation.idempotence.key import check_fields, key_part
from reservation.idempotence.strategy import Check, Incoming, Strategy, record_failed
from reservation.postgres.arrays import IntArray, TextArray
from reservation.postgres.exchange.request import Request
from reservation.postgres.queries import load_queries
from reservation.store.statements import Statement

_QUERIES = load_queries("reservation.idempotence", "revision.sql")

MAX_REVISION = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Revisions(Strategy):
    """Discard messages whose revision is not greater than the last of their entity and source.

    ``@account.handle(Deposit, once=Revisions())``

    Attributes:
        revision: the field of the command that holds its revision, a whole number from 0.
        source: the field that names the counter, a text or a whole number; None if each entity has
            one counter.
    """

    revision: str = "revision"
    source: str | None = "source"

    def declare(self, component: str, command: type, entity: type | None) -> None:
        """Make sure that a command has the fields.

        Raises:
            DeclarationError: it lacks a field.
        """
        del component, entity
        fields = [self.revision] if self.source is None else [self.revision, self.source]
        check_fields(command, fields)

    @property
    def keeps_records(self) -> bool:
        """Whether `forget` lets handled messages be handled anew."""
        return True

    def forget(
        self,
        connection: Connection[Any],
        consumer: str,
        category: str,
        types: Sequence[str],  # noqa: ARG002  they are kept by category
    ) -> None:
        """Remove the revisions of a category."""
        connection.execute(_QUERIES["forget"], {"consumer": consumer, "category": category})

    def look(self, consumer: str, category: str, batch: Sequence[Incoming]) -> Statement[Check]:
        """Return what reads the last revisions of the entities of a batch.

        Raises:
            IdempotenceKeyError: a message has no revision or no source.
        """
        for incoming in batch:
            self.revision_of(incoming)
        series = dict.fromkeys(self.series_of(incoming) for incoming in batch)
        return Statement(
            _QUERIES["read"],
            [consumer, category, *_columns(series)],
            partial(RevisionCheck, consumer, category, self),
        )

    def series_of(self, incoming: Incoming) -> tuple[str, str]:
        """Return what a message's revision is compared within: its entity's stream and its source.

        Raises:
            IdempotenceKeyError: the message has no source.
        """
        if self.source is None:
            return incoming.entity_stream, ""
        try:
            source = key_part(getattr(incoming.command, self.source), f"field {self.source}")
        except IdempotenceKeyError as error:
            raise IdempotenceKeyError(f"Cannot handle {incoming.message}: {error}") from error
        return incoming.entity_stream, source

    def revision_of(self, incoming: Incoming) -> int:
        """Return a message's revision.

        Raises:
            IdempotenceKeyError: it is not a revision.
        """
        value = getattr(incoming.command, self.revision)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_REVISION:
            return value
        raise IdempotenceKeyError(
            f"Cannot handle {incoming.message}: field {self.revision} holds no revision; a "
            f"revision is a whole number from 0 to {MAX_REVISION}"
        )


class RevisionCheck(Check):
    """The last revisions of the entities of one batch."""

    def __init__(
        self,
        consumer: str,
        category: str,
        strategy: Revisions,
        found: Iterable[tuple[Any, ...]],
    ) -> None:
        self._of = (consumer, category)
        self._strategy = strategy
        self._before = {(stream, source): revision for stream, source, revision in found}
        self._last = dict(self._before)
        self._former: dict[tuple[str, str], int | None] = {}  # before the last message of each

    def is_duplicate(self, incoming: Incoming) -> bool:
        """Return whether a message's revision is not greater than the last; else note it."""
        one, revision = self._strategy.series_of(incoming), self._strategy.revision_of(incoming)
        last = self._last.get(one)
        if last is not None and revision <= last:
            return True
        self._last[one], self._former[one] = revision, last
        return False

    def forget(self, incoming: Incoming) -> None:
        """Forget the revision of a message whose handler failed."""
        one = self._strategy.series_of(incoming)
        former = self._former[one]
        if former is None:
            del self._last[one]
        else:
            self._last[one] = former

    def record(self) -> Sequence[Request]:
        """Return what raises the last revisions to what was handled."""
        raised = {
            one: revision
            for one, revision in self._last.items()
            if revision != self._before.get(one)
        }
        if not raised:
            return ()
        before = IntArray([self._before.get(one) for one in raised])
        after = IntArray(list(raised.values()))
        parameters = [*self._of, *_columns(raised), before, after, len(raised)]
        failed = partial(record_failed, self._of[0])
        return [Request(_QUERIES["write"], parameters, failed=failed)]


def _columns(series: dict[tuple[str, str], Any]) -> tuple[TextArray, TextArray]:
    return TextArray([stream for stream, _ in series]), TextArray([source for _, source in series])
