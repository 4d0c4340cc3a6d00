"""The reading of the next batch, and the position of the category that it leads to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from consumers.archived import read_both, takes
from consumers.batch.batch_size import BatchSize
from consumers.dead_letters.corrections import Corrections, with_data
from consumers.group.positions import HeldPartitions
from consumers.runtime.context import ConsumerContext
from reservation.declaration.table import declarations
from reservation.entity.cache import NONE_READ, LastEvents
from reservation.idempotence.server_keys import Commands, read_commands, server_rules
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.store.category_part import CategoryPart
from reservation.store.statements import Statement, read_part, run

_QUERIES = load_queries("consumers.batch")


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """The messages of a batch.

    Attributes:
        part: which part of the category was read.
        to: the global position up to which the part is handled with the batch.
        messages: the messages, in their order.
        key_streams: for each, the stream that its key names, where the server has taken the key;
            None for a message that has its data.
        as_sent: by global position, the messages as they were sent, if they have other data.
        ended: whether the category is known to have had nothing after them.
        are_stored: whether all messages are known to be in the store, not only in an archive.
    """

    part: CategoryPart
    to: int
    messages: Sequence[StoredMessage]
    key_streams: Sequence[str | None]
    as_sent: dict[int, StoredMessage]
    ended: bool
    are_stored: bool = True

    @property
    def last(self) -> str | None:
        """The id of the stored message at the position up to which it goes; None if not known."""
        messages = self.messages if self.are_stored else ()
        return messages[-1].id if messages and messages[-1].global_position == self.to else None

    def up_to(self, count: int) -> "ReadBatch":
        """Return the batch of its first messages, of which there is at least one."""
        messages = self.messages[:count]
        to = messages[-1].global_position
        return replace(
            self, to=to, messages=messages, key_streams=self.key_streams[:count], ended=False
        )


# What a batch begins with, and the last events of its entities, as far as they were read with it.
WithEvents = tuple[Commands, LastEvents]

# With up to so many messages, the last events of each entity are read too, up to so many.
MOST_ENTITIES, LATEST_EVENTS = 20, 8

# And up to so many bytes, as the server stores them: the entity may be cached already.
_LATEST_BYTES = 65_536


class BatchReading:
    """Reads the category of one consumer of a component.

    Attributes:
        rules: the rules by which the server takes keys, as JSON; see `server_rules`.
        size: how many messages the next batch may have.
    """

    def __init__(
        self,
        context: ConsumerContext,
        corrections: Corrections,
    ) -> None:
        component, category = context.component, context.category
        table = declarations(component)
        self._context = context
        self._corrections = corrections
        subscribed = table.others.get(category)
        self._first_position = 0 if subscribed is None else subscribed.first_position
        reservations = {
            name: declared
            for name, declared in table.server_keys.items()
            if name not in table.own.ignored
        }
        self.rules = server_rules(reservations if context.reserves else {})
        has_entities = {
            declared.entity is not None
            for declared in table.own.reservations.values()
            if declared.into == category
        }
        self._are_of_entities = has_entities == {True}  # the streams, by their names
        self.size = BatchSize()
        self._waits = True  # for messages: the last batch was not full

    def part(self, positions: HeldPartitions) -> CategoryPart | None:
        """Return what to read, up to where the category ends if it is read in parts.

        What is read after that end was read is complete up to it, because the messages of a
        category are committed in the order of their positions.
        """
        part = positions.next()
        if part is None or part.partitions is None:
            return part
        return part.up_to(max(self._head(), part.after))

    def first(self, positions: HeldPartitions) -> StoredMessage | None:
        """Return the first message of the next batch; None at the end of the category."""
        part = self.part(positions)
        if part is None:
            return None
        archived = self.archived(part, 1)
        if archived is not None:
            _, (messages, _) = archived
        else:
            messages, _ = run(self._context.connection, self.statement(part, 1))
        return messages[0] if messages else None

    def archived(self, part: CategoryPart, limit: int) -> tuple[CategoryPart, Commands] | None:
        """Read a batch that begins in an archive; None if it begins behind it, or there is none."""
        context = self._context
        if context.archived is None or part.after >= context.archived.last:
            return None
        of = context.archived, context.category, part, limit, context.options.batch_bytes
        part, messages = read_both(context.connection, *of)
        return part, (messages, [None] * len(messages))

    def is_never_corrected(self, positions: HeldPartitions, part: CategoryPart) -> bool:
        """Return whether no message of a part has a correction, as far as that is known."""
        return self._corrections.has_none_after(positions, part.after)

    def statement(self, part: CategoryPart, limit: int) -> Statement[Commands]:
        """Return what reads a batch, and the stream of each key that the server takes."""
        category, most = self._context.category, self._context.options.batch_bytes
        if part.after + 1 < self._first_position:
            part = replace(part, after=self._first_position - 1)
        if self.rules != "[]":
            return read_commands(category, part, limit, self.rules, most)
        reading = read_part(category, part, limit, most)

        def read(rows: Sequence[tuple[Any, ...]]) -> Commands:
            return reading.read(rows), [None] * len(rows)

        return Statement(reading.query, reading.parameters, read, repeated=True)

    def statement_to_decide(self, part: CategoryPart, limit: int) -> Statement[WithEvents]:
        """Return what reads a batch, and the last events of its entities if it is small.

        Where more messages follow, most entities are known, and reading their events is in vain.
        """
        reading = self.statement(part, limit)
        if not (self._are_of_entities and self._waits):
            return Statement(
                reading.query, reading.parameters, lambda rows: (reading.read(rows), NONE_READ)
            )
        further = [self._context.component.name, MOST_ENTITIES, LATEST_EVENTS, _LATEST_BYTES]
        return Statement(
            _QUERIES["read_with_entities"], [*reading.parameters, *further], _with_events
        )

    def batch(
        self,
        positions: HeldPartitions,
        part: CategoryPart,
        commands: Commands,
        limit: int,
    ) -> ReadBatch:
        """Return the batch that begins what was read, with the messages as they were corrected."""
        messages, key_streams = commands
        self._waits = len(messages) < limit
        ended = part.until is None and part.partitions is None and self._is_end(messages, limit)
        to = self._end(part, messages, limit)
        if to + 1 < self._first_position:
            to = self._skipped(to)
        archived = self._context.archived
        are_stored = archived is None or part.after >= archived.last
        batch = ReadBatch(part, to, messages, key_streams, {}, ended, are_stored)
        if messages:
            self.size.used_all()
        if batch.to == part.after:
            return batch
        corrected = self._corrections.of(self._context.connection, positions, batch.messages)
        if not corrected:
            return batch
        as_sent = {
            message.global_position: message
            for message in batch.messages
            if message.global_position in corrected
        }
        messages = [
            with_data(message, corrected[message.global_position])
            if message.global_position in corrected
            else message
            for message in batch.messages
        ]
        key_streams = [  # the server took those keys from what was sent
            None if message.global_position in corrected else key_stream
            for message, key_stream in zip(messages, batch.key_streams, strict=True)
        ]
        return replace(batch, messages=messages, key_streams=key_streams, as_sent=as_sent)

    def _head(self) -> int:
        """Return the global position of the category's last message."""
        with translated():
            ((head,),) = self._context.connection.execute(
                _QUERIES["category_head"], [self._context.category]
            ).fetchall()
        return int(head)

    def _skipped(self, to: int) -> int:
        """Return how far messages are skipped, because every handler begins later."""
        return max(to, min(self._head(), self._first_position - 1))

    def _end(self, part: CategoryPart, messages: Sequence[StoredMessage], limit: int) -> int:
        """Return the position up to which a part was read."""
        if part.until is not None and self._is_end(messages, limit):
            return part.until
        return messages[-1].global_position if messages else part.after

    def _is_end(self, messages: Sequence[StoredMessage], limit: int) -> bool:
        """Return whether there was nothing more to read than these messages.

        A batch ends at a number of bytes too.
        """
        return len(messages) < limit and takes(messages) < self._context.options.batch_bytes


def _with_events(rows: Sequence[tuple[Any, ...]]) -> WithEvents:
    """Return the messages that were read, and the last events of their entities."""
    messages: list[StoredMessage] = []
    events: dict[str, list[StoredMessage]] = {}
    for *columns, entity_stream in rows:
        if columns[0] is None:  # its last event is too large to be read along
            del events[entity_stream]
            continue
        message = StoredMessage(*columns)
        if message.stream_name == entity_stream:
            events[entity_stream].append(message)
        else:
            messages.append(message)
            events.setdefault(entity_stream, [])
    key_streams: list[str | None] = [None] * len(messages)
    is_small = len(messages) <= MOST_ENTITIES
    return (messages, key_streams), events if is_small else NONE_READ
