"""The outcome of messages that are read again: which of them are duplicates, and why.

A record is what a strategy stored beside the log, such as a pass; it can be removed, and then the
message is handled anew. What the log itself shows cannot: a reservation, or an event that followed.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import psycopg
from psycopg import Connection

from consumers.group.administration import GroupChange
from consumers.handling.decoding import Decoded, Decoding
from consumers.handling.redelivery import handled_before
from reservation.component import Component
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.errors import MessageError, StoreError
from reservation.idempotence.strategy import Strategy
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.store.client import MessageStore
from reservation.store.statements import run

_QUERIES = load_queries("consumers.handling", "rereading.sql")

# Messages of a category that are looked at, and how many of them at once.
MOST_READ = 100_000
_AT_ONCE = 2_000
_MOST_PORTIONS = MOST_READ // _AT_ONCE


@dataclass(frozen=True, slots=True)
class Rereading:
    """The outcome of the messages of a category that a change of positions has read again.

    Attributes:
        recorded: how many are recorded as handled beside the log.
        in_log: how many are handled as the log itself shows, by a reservation or an event.
        at_least: whether there are more messages than were looked at.
    """

    recorded: int = 0
    in_log: int = 0
    at_least: bool = False

    @property
    def duplicates(self) -> int:
        """The number of duplicates."""
        return self.recorded + self.in_log


def look_again(connection: Connection[Any], component: Component, change: GroupChange) -> Rereading:
    """Return what becomes of the messages that a change has read again.

    The strategies look at them as they do in a batch. Whatever they write is taken back.
    """
    if not change.redelivered:
        return Rereading()
    look = _Look(connection, component, change.group.category)
    found = Rereading()
    with translated(), connection.transaction():
        portions = 0
        for messages in _read_again(connection, change):
            portions += 1
            one = look.at(messages)
            found = Rereading(found.recorded + one.recorded, found.in_log + one.in_log)
        found = Rereading(found.recorded, found.in_log, portions == _MOST_PORTIONS)
        raise psycopg.Rollback()
    return found


def check_again(component: Component, category: str) -> None:
    """Make sure that the messages of a category can be handled anew."""
    table = declarations(component)
    declared = table.of(category)
    reserves = category == table.command_category
    for name in sorted(declared.handled):
        strategy = declared[name].once
        if reserves and name in declared.reservations:
            reason = "their reservations are in the log"
        elif reserves and declared[name].role is Role.INITIATE:
            reason = "the streams that they started are in the log"
        elif strategy is None or strategy.keeps_records:
            continue
        elif strategy.keeps_state:
            reason = "later versions of the state build on those that they made"
        else:
            reason = "their events in the log say that they were handled"
        raise StoreError(
            f"Messages of type {name} in {category} cannot be handled again: {reason}; leave out "
            f"--again, or name a category whose messages can"
        )


def forget_records(connection: Connection[Any], component: Component, category: str) -> None:
    """Remove the records that make messages of a category duplicates."""
    declared = declarations(component).of(category)
    types: dict[Strategy, list[str]] = defaultdict(list)
    for name, strategy in declared.strategies.items():
        types[strategy].append(name)
    with translated():
        for strategy, names in types.items():
            strategy.forget(connection, component.name, category, names)


class _Look:
    """Looks at the messages of one category as a consumer does."""

    def __init__(self, connection: Connection[Any], component: Component, category: str) -> None:
        self._connection, self._component, self._category = connection, component, category
        self._declared = declarations(component).of(category)
        self._decoding = Decoding(component, category)

    def at(self, messages: Sequence[StoredMessage]) -> Rereading:
        """Return what becomes of some messages."""
        store = MessageStore(self._connection)
        in_log = set(handled_before(store, messages, self._decoding, self._declared))
        by_strategy: dict[Strategy, list[Decoded]] = defaultdict(list)
        for message in messages:
            try:
                decoded = self._decoding.look(message, None)
            except MessageError:
                continue
            if decoded is None or message.id in in_log:
                continue
            strategy = self._declared[message.type].once
            if decoded.entity_stream is None or self._declared[message.type].role is Role.INITIATE:
                in_log.add(message.id)  # its reservation, or the stream that it started
            elif strategy is not None:
                by_strategy[strategy].append(decoded)
        recorded = 0
        for strategy, of_strategy in by_strategy.items():
            known = self._duplicates(strategy, of_strategy)
            if strategy.keeps_records:
                recorded += len(known)
            else:
                in_log |= known
        return Rereading(recorded, len(in_log))

    def _duplicates(self, strategy: Strategy, decoded: Sequence[Decoded]) -> set[str]:
        incoming = [one.incoming for one in decoded]
        name, category = self._component.name, self._category
        known: set[str] = set()
        try:
            check = run(self._connection, strategy.look(name, category, incoming))
        except MessageError:
            return known
        for one in incoming:
            try:
                if check.is_duplicate(one):
                    known.add(one.message.id)
            except MessageError:
                continue
        return known


def _read_again(connection: Connection[Any], change: GroupChange) -> Iterator[list[StoredMessage]]:
    """Give the messages that a change has read again, in portions, up to a limit."""
    before = (0,) * len(change.after) if change.group.foreign else change.group.positions
    low, high, partitions = min(change.after), max(before), len(change.after)
    messages = MessageStore(connection).read_category(
        change.group.category, position=low + 1, batch_size=_AT_ONCE
    )
    for _ in range(_MOST_PORTIONS):
        portion = list(islice(messages, _AT_ONCE))
        streams = [message.stream_name for message in portion]
        values = {"streams": streams, "partitions": partitions}
        parts = [part for (part,) in connection.execute(_QUERIES["partitions"], values)]
        yield [
            message
            for message, part in zip(portion, parts, strict=True)
            if change.after[part] < message.global_position <= before[part]
        ]
        if len(portion) < _AT_ONCE or portion[-1].global_position >= high:
            return
