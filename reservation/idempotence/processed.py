"""Processed messages in a table: a message whose key is in it is a duplicate.

The key of each message is inserted into ``reservation.processed_messages`` in the transaction that
writes its effects, so both are stored or neither. A batch takes two statements.
(Source: "Handling duplicate messages" in Richardson's *Microservices Patterns*, 3.3.6, and the
duplicate detection of Eventuate Tram.)

With the message's id as the key, redelivery is recognized; with a business key also a reissue under
a new id. The content is not compared: of two messages with the same key, the first takes effect.

Rows are kept for ever, unless a handler limits that. They are partitioned by the day on which the
*message* was stored, because a redelivery of the message looks there, and whole days are dropped.
The transaction that drops a day records that. Whether a message of such a day was processed is no
longer known, so it is refused. A business key belongs to the day of the message that had it first.
After that day is dropped, a reissue takes effect again.

A unique index cannot span the partitions of several days. So a batch that records business keys
holds the lock of its handlers until it commits, looks again, and fails if another batch was first.
It is then run again and finds duplicates. Handlers run before that lock is taken.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from psycopg import Connection

from reservation.errors import (
    DeclarationError,
    ExpiredError,
    HandlerError,
    IdempotenceKeyError,
)
from reservation.idempotence.key import KeyFunction, check_fields, key_parts, key_stream_name
from reservation.idempotence.strategy import Check, Incoming, Strategy, record_failed
from reservation.messages import stream_name
from reservation.postgres.arrays import IntArray, TextArray
from reservation.postgres.exchange.request import Request
from reservation.postgres.queries import load_queries
from reservation.raised import describe
from reservation.store.statements import Statement

_QUERIES = load_queries("reservation.idempotence", "processed.sql")


class Processed(Strategy):
    """Discard messages whose id, or business key, was processed by this handler before.

    ``@account.handle(Deposit, once=Processed(key="deposit_id"))``. Messages that were handled
    before this was declared are not recognized.
    """

    def __init__(
        self,
        key: str | Iterable[str] | KeyFunction | None = None,
        *,
        keep: timedelta | None = None,
    ) -> None:
        """Choose the key of a message, and how long it is remembered.

        Args:
            key: the field, or fields, that hold the business key; or a function of the command
                that returns it; None for the message's id.
            keep: how long after it was stored a message is remembered at least; None for ever.
                `reservation prune` drops older rows, and older messages are then refused.

        Raises:
            DeclarationError: the key names no field, or nothing would be kept.
        """
        if key is not None and not callable(key):
            if isinstance(key, str):
                key = (key,)
            key = tuple(key) if isinstance(key, Iterable) else ()
            if not key:
                raise DeclarationError(
                    "Processed: the key names no field; leave it out to use the message's id"
                )
        if keep is not None and not isinstance(keep, timedelta):
            raise DeclarationError(f"Processed: keep={keep!r} is not a timedelta")
        if keep is not None and keep <= timedelta(0):
            raise DeclarationError(f"Processed: keep={keep} is not longer than 0")
        self.key: tuple[str, ...] | KeyFunction | None = key
        self.keep = keep

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Processed) and (self.key, self.keep) == (other.key, other.keep)

    def __hash__(self) -> int:
        return hash((self.key, self.keep))

    def __repr__(self) -> str:
        key = getattr(self.key, "__qualname__", self.key)
        return f"Processed(key={key!r}, keep={self.keep!r})"

    def declare(self, component: str, command: type, entity: type | None) -> None:
        """Make sure that a command has the key's fields.

        Raises:
            DeclarationError: it lacks a field.
        """
        del component, entity
        if isinstance(self.key, tuple):
            check_fields(command, self.key)

    @property
    def keeps_records(self) -> bool:
        """Whether `forget` lets handled messages be handled anew."""
        return True

    def forget(
        self,
        connection: Connection[Any],
        consumer: str,
        category: str,
        types: Sequence[str],
    ) -> None:
        """Remove the processed messages of a category."""
        values = {"consumer": consumer, "category": category, "types": list(types)}
        for name in ("forget", "forget_dropped"):
            connection.execute(_QUERIES[name], values)

    def look(
        self,
        consumer: str,
        category: str,  # noqa: ARG002  a message of one type is the same in all of them
        batch: Sequence[Incoming],
    ) -> Statement[Check]:
        """Return what looks which messages of a batch were processed.

        Raises:
            IdempotenceKeyError: a message has no key.
            HandlerError: the key function raised.
        """
        check = ProcessedCheck(consumer, self, batch)
        return Statement(_QUERIES["find"], check.parameters(), check.with_found)

    def key_of(self, incoming: Incoming) -> str:
        """Return the key of a message, which is unique among those of its type."""
        message = incoming.message
        if self.key is None:
            return message.id
        try:
            name = key_stream_name(message.type, key_parts(incoming.command, self.key))
        except IdempotenceKeyError as error:
            raise IdempotenceKeyError(f"Cannot handle {message}: {error}") from error
        except Exception as error:
            raise HandlerError(
                f"The key function for {message} raised {describe(error)}"
            ) from error
        return name.removeprefix(message.type + stream_name.ID_SEPARATOR)


@dataclass(slots=True)
class _Rows:
    """Messages as the functions in the server take them."""

    types: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    times: list[datetime] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def add(self, incoming: Incoming, key: str) -> None:
        """Add a message under each name of its class, because others may know only one of them."""
        message = incoming.message
        for name in incoming.names or (message.type,):
            self.types.append(name)
            self.keys.append(key)
            self.times.append(_as_stored(message.time))
            self.positions.append(message.global_position)

    def remove(self, position: int) -> None:
        """Remove a message, which mostly is the last one."""
        columns: tuple[list[Any], ...] = (self.types, self.keys, self.times, self.positions)
        for n in range(len(self.positions) - 1, -1, -1):
            if self.positions[n] == position:
                for column in columns:
                    del column[n]


class ProcessedCheck(Check):
    """Finds the processed messages of a batch."""

    def __init__(self, consumer: str, strategy: Processed, batch: Sequence[Incoming]) -> None:
        self._consumer = consumer
        self._strategy = strategy
        self._keys = {
            incoming.message.global_position: strategy.key_of(incoming) for incoming in batch
        }
        self._known: set[tuple[str, str]] = set()
        self._dropped: dict[int, datetime] = {}
        self._new = _Rows()
        self._batch = _Rows()
        for incoming in batch:
            self._batch.add(incoming, self._keys[incoming.message.global_position])
        self._own_names = {
            name: _own_name(one) for one in batch for name in one.names or (one.message.type,)
        }

    def parameters(self) -> list[Any]:
        """Return what the statement that looks takes."""
        rows = self._batch
        types, keys = TextArray(rows.types), TextArray(rows.keys)
        return [self._consumer, types, keys, rows.times, self._strategy.key is None]

    def with_found(self, found: Iterable[tuple[Any, ...]]) -> "ProcessedCheck":
        """Return the check, with what that statement found."""
        rows = self._batch
        for ordinal, known, dropped_until in found:
            n = ordinal - 1
            if known:
                self._known.add((self._own_names[rows.types[n]], rows.keys[n]))
            else:
                at = rows.positions[n]
                self._dropped[at] = max(dropped_until, self._dropped.get(at, dropped_until))
        return self

    def is_duplicate(self, incoming: Incoming) -> bool:
        """Return whether a message was processed, in an earlier batch or earlier in this one."""
        message = incoming.message
        key = self._keys[message.global_position]
        name = _own_name(incoming)
        if (name, key) in self._known:
            return True
        dropped_until = self._dropped.get(message.global_position)
        if dropped_until is not None:
            raise ExpiredError(
                f"Cannot handle {message}: it was stored at {_as_stored(message.time)}, and what "
                f"{self._consumer} processed before {dropped_until} is no longer known, so it "
                f"may have been handled; if it was not, let its sender send it again"
            )
        self._known.add((name, key))
        self._new.add(incoming, key)
        return False

    def ordering_key(self, incoming: Incoming) -> Hashable | None:
        """Return the key of a message, if it has another than its id."""
        if self._strategy.key is None:
            return None
        return _own_name(incoming), self._keys[incoming.message.global_position]

    def forget(self, incoming: Incoming) -> None:
        """Forget a message whose handler failed."""
        at = incoming.message.global_position
        self._known.discard((_own_name(incoming), self._keys[at]))
        self._new.remove(at)

    def record(self) -> Sequence[Request]:
        """Return what inserts the keys of the messages that were handled."""
        new = self._new
        if not new.keys:
            return ()
        parameters = [
            self._consumer,
            self._strategy.keep,
            TextArray(new.types),
            TextArray(new.keys),
            new.times,
            self._strategy.key is None,
            IntArray(new.positions),
            len(new.keys),
        ]
        failed = partial(record_failed, self._consumer)
        return [Request(_QUERIES["record"], parameters, failed=failed)]


def _own_name(incoming: Incoming) -> str:
    """Return the name of a command's class, whichever name its message is stored under."""
    return incoming.names[0] if incoming.names else incoming.message.type


def _as_stored(time: datetime) -> datetime:
    """Return a time as the store has it: in UTC, without saying so."""
    return time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)
