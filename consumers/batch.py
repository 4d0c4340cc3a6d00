"""One batch, one transaction: read, decide, write, move the position, commit.

A crash at any point leaves nothing behind, and the batch is read again. Handlers run before
anything is written, so the category locks are held for the writes alone.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import Connection, Rollback

from consumers.decisions import Decisions
from consumers.handling import Handling
from consumers.portions import Portions
from consumers.position import Positions
from reservation.component import Component
from reservation.errors import (
    ExpectedVersionError,
    HandlerError,
    MessageError,
    MessageIdConflictError,
    StoreError,
)
from reservation.idempotence.reserve import compare_initiations, reserve
from reservation.idempotence.rules import read_commands, server_rules
from reservation.message import StoredMessage
from reservation.queries import load_queries
from reservation.store.client import MessageStore
from reservation.store.errors import translated
from reservation.store.part import Part
from reservation.store.writing import Write

_QUERIES = load_queries("consumers")


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of a batch.

    Attributes:
        part: which part of the category it was for; None if nothing of it is held.
        to: the global position that this part is dealt with up to now.
        read: how many messages it had.
        counts: how many of them were handled, reserved, duplicates, conflicts, ignored or
            redelivered.
        conflicts: the commands in conflict with an earlier one, and the stream of their key.
    """

    part: Part | None
    to: int
    read: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    conflicts: Sequence[tuple[StoredMessage, str]] = ()

    @property
    def moved(self) -> bool:
        """Whether a position moved; it does not at the end of the category."""
        return self.part is not None and self.to > self.part.after


class Batch:
    """How one consumer takes its category forward by a batch."""

    def __init__(
        self,
        connection: Connection[Any],
        component: Component,
        category: str,
        moves: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare.

        Args:
            connection: not in a transaction.
            component: whose handlers decide.
            category: the category to take forward.
            moves: called before each handler is, as a sign that the process is not stuck.
        """
        self._connection = connection
        self._component = component
        self._category = category
        self._handling = Handling(connection, component, category, moves)
        self._portions = Portions(self._handling.alone)
        self._wanted: list[str] = []
        self._rules = server_rules(
            {
                name: declared
                for name, declared in component.reservations.items()
                if name not in component.ignored
            }
        )

    def run(self, positions: Positions, limit: int, *, careful: bool = False) -> BatchResult:
        """Take the category forward by up to ``limit`` messages.

        Args:
            positions: what is held of the category.
            limit: how many messages to take at most.
            careful: whether to hold off other writers before anything is read, rather than only
                while writing, and to look for messages that were handled before. A batch that lost
                a race, or met its own earlier effects, is sure to get through then.

        Raises:
            MessageError: a message can not be dealt with; nothing of the batch is written.
            ExpectedVersionError, MessageIdConflictError: another writer was first, or a message
                was handled before; run the batch again, carefully.
            PositionLostError: another process has taken over; nothing of the batch is written.
        """
        try:
            return self._run(positions, limit, careful)
        except BaseException:
            self._handling.forget()
            raise

    def _run(self, positions: Positions, limit: int, careful: bool) -> BatchResult:
        connection = self._connection
        with translated(), connection.transaction():
            store = MessageStore(connection)
            if careful:
                component = self._component
                store.lock_categories(
                    [component.name, *component.reservation_categories, *self._wanted]
                )
            part = self._part(positions)
            if part is None:
                return BatchResult(None, 0)
            size = self._portions.limit(limit)
            messages, key_streams = self._read(store, part, size)
            to = _end(part, messages, size)
            if to == part.after:
                return BatchResult(part, to)
            if (end := self._portions.cut(messages)) < len(messages):
                messages, key_streams = messages[:end], key_streams[:end]
                to = messages[-1].global_position
            decide = self._decide_carefully if careful else self._handling.decide
            decisions = decide(store, messages, key_streams)
            self._wanted = decisions.categories
            store.lock_categories(decisions.categories)
            positions.advance(connection, part, to)
            try:
                self._write(store, decisions, messages)
            except (ExpectedVersionError, MessageIdConflictError) as error:
                if careful:
                    _blame(error, decisions, messages)
                raise
            self._handling.written(decisions)
        positions.moved(part, to)
        return BatchResult(part, to, len(messages), decisions.counts, decisions.conflicts)

    def _part(self, positions: Positions) -> Part | None:
        """Return what to read, up to where the category ends if it is read in parts.

        What is read after its end was looked at holds all that there is up to there, because the
        messages of a category are committed in the order of their positions.
        """
        part = positions.next()
        if part is None or part.partitions is None:
            return part
        with translated():
            rows = self._connection.execute(_QUERIES["category_head"], [self._category]).fetchall()
        return part.up_to(max(rows[0][0], part.after))

    def _read(
        self, store: MessageStore, part: Part, limit: int
    ) -> tuple[Sequence[StoredMessage], Sequence[str | None]]:
        """Read a batch, and for each message the stream of its key, if the server took that."""
        category = self._category
        if category == self._component.command_category and self._rules != "[]":
            return read_commands(self._connection, category, part, limit, self._rules)
        messages = store.category_batch(category, part, limit)
        return messages, [None] * len(messages)

    def _write(
        self, store: MessageStore, decisions: Decisions, messages: Sequence[StoredMessage]
    ) -> None:
        connection, component = self._connection, self._component
        try:
            for write_id in self._further_before(store, decisions):
                raise MessageIdConflictError(f"The message {write_id} was written before")
            _refuse_redelivery(decisions.writes, store.write_batch(decisions.writes))
            outcomes = reserve(
                connection,
                [(command.global_position, name) for command, name in decisions.reservations],
                component.volatile("reserve"),
            )
            reissued = compare_initiations(
                connection,
                [(command.global_position, name) for command, name in decisions.reissued],
                component.volatile("initiate"),
            )
        except StoreError as error:
            if type(error) is not StoreError:
                raise
            raise MessageError(  # which names the message once it is alone in its batch
                f"Cannot write what {messages[0]} brings about: {error}"
            ) from error
        for (command, name), outcome in zip(decisions.reservations, outcomes, strict=True):
            decisions.tell(command, name, outcome)
        for (command, name), outcome in zip(decisions.reissued, reissued, strict=True):
            decisions.tell(command, name, outcome)

    def _decide_carefully(
        self,
        store: MessageStore,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
    ) -> Decisions:
        """Decide, and pass what was handled before.

        A message that brought about no event shows that only by what its handler writes, once it
        is alone: what the handler did is taken back then.
        """
        decide, redelivered = self._handling.decide, False
        handled = self._handled_before(store, messages)
        with self._connection.transaction() as attempt:
            decisions = decide(store, messages, key_streams, handled)
            if len(messages) == 1 and any(self._further_before(store, decisions)):
                redelivered = True
                raise Rollback(attempt)
        if redelivered:
            self._handling.forget()
            return decide(store, messages, key_streams, frozenset([messages[0].id]))
        return decisions

    def _further_before(self, store: MessageStore, decisions: Decisions) -> Iterator[uuid.UUID]:
        """Give the ids of the further messages that are stored already, where they belong."""
        if decisions.further:
            stored = store.stored_ids([write.id for write in decisions.further if write.id])
            for write in decisions.further:
                if write.id is not None and stored.get(write.id) == write.stream_name:
                    yield write.id

    def _handled_before(
        self, store: MessageStore, messages: Sequence[StoredMessage]
    ) -> frozenset[str]:
        """Return the ids of those messages whose first event is stored already."""
        first_events = list(self._handling.first_events(messages))
        stored = store.stored_ids([event for _, event, _ in first_events])
        # In another stream it is no event of ours but a message that took the id, which the store
        # will then say.
        return frozenset(
            message.id for message, event, stream in first_events if stored.get(event) == stream
        )


def _end(part: Part, messages: Sequence[StoredMessage], limit: int) -> int:
    """Return the position up to which a part was read."""
    if part.until is not None and len(messages) < limit:
        return part.until
    return messages[-1].global_position if messages else part.after


def _blame(
    error: ExpectedVersionError | MessageIdConflictError,
    decisions: Decisions,
    messages: Sequence[StoredMessage],
) -> None:
    """Raise an error that no further attempt mends as one of the message, once that is alone.

    Under the locks nobody else can have been first. That an entity's stream is not where it was
    read is no fault of a handler all the same: there are writers that take no locks.
    """
    of = str(messages[0]) if len(messages) == 1 else f"{len(messages)} messages from {messages[0]}"
    if isinstance(error, MessageIdConflictError):
        raise MessageError(
            f"Cannot write what the handling of {of} brings about: {error}"
        ) from error
    if decisions.conditional:
        raise HandlerError(
            f"The handler of {of} wrote with an expected version that is not met: {error}"
        ) from error


def _refuse_redelivery(writes: Sequence[Write], positions: Sequence[int]) -> None:
    """Make sure that every event is where the decisions took it to be.

    An event that was stored before is passed over by the store; what was decided after it was
    decided on an entity that had it twice.
    """
    for write, position in zip(writes, positions, strict=True):
        if write.expected_version is not None and position != write.expected_version + 1:
            raise MessageIdConflictError(
                f"The event {write.id} in {write.stream_name} was written before, at {position}"
            )
