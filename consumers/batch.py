"""One batch, one transaction: read, decide, write, move the position, commit.

A crash at any point leaves nothing behind, and the batch is read again. Handlers run before
anything is written, so the category locks are held for the writes alone.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from consumers.decisions import Decisions
from consumers.handling import Handling
from consumers.position import Position
from reservation.component import Component
from reservation.errors import MessageError, MessageIdConflictError, StoreError
from reservation.idempotence.reserve import compare_initiations, reserve
from reservation.idempotence.rules import read_commands, server_rules
from reservation.message import StoredMessage
from reservation.store.client import MessageStore
from reservation.store.errors import translated
from reservation.store.writing import Write


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of a batch.

    Attributes:
        read: how many messages it had; 0 at the end of the category.
        counts: how many of them were handled, reserved, duplicates, conflicts, ignored or
            redelivered.
        conflicts: the commands in conflict with an earlier one, and the stream of their key.
    """

    read: int
    counts: Counter[str]
    conflicts: Sequence[tuple[StoredMessage, str]]


class Batch:
    """How one consumer takes its category forward by a batch."""

    def __init__(
        self,
        connection: Connection[Any],
        component: Component,
        position: Position,
    ) -> None:
        """Prepare.

        Args:
            connection: not in a transaction.
            component: whose handlers decide.
            position: the claimed position in the category.
        """
        self._connection = connection
        self._component = component
        self._position = position
        self._handling = Handling(component, position.category)
        self._rules = server_rules(
            {
                name: declared
                for name, declared in component.reservations.items()
                if name not in component.ignored
            }
        )

    def run(self, limit: int, *, careful: bool = False) -> BatchResult:
        """Take the category forward by up to ``limit`` messages.

        Args:
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
            return self._run(limit, careful)
        except BaseException:
            self._handling.forget()
            raise

    def _run(self, limit: int, careful: bool) -> BatchResult:
        connection, position = self._connection, self._position
        to = position.position
        with translated(), connection.transaction():
            store = MessageStore(connection)
            if careful:
                component = self._component
                store.lock_categories([component.name, *component.reservation_categories])
            messages, key_streams = self._read(store, to + 1, limit)
            if not messages:
                position.check(connection)
                return BatchResult(0, Counter(), ())
            handled = self._handled_before(store, messages) if careful else frozenset()
            decisions = self._handling.decide(store, messages, key_streams, handled)
            to = messages[-1].global_position
            store.lock_categories(decisions.categories)
            position.advance(connection, to)
            self._write(store, decisions, messages)
        position.moved(to)
        return BatchResult(len(messages), decisions.counts, decisions.conflicts)

    def _read(
        self, store: MessageStore, position: int, limit: int
    ) -> tuple[Sequence[StoredMessage], Sequence[str | None]]:
        """Read a batch, and for each message the stream of its key, if the server took that."""
        category = self._position.category
        if category == self._component.command_category and self._rules != "[]":
            return read_commands(self._connection, category, position, limit, self._rules)
        messages = store.category_batch(category, position, limit)
        return messages, [None] * len(messages)

    def _write(
        self, store: MessageStore, decisions: Decisions, messages: Sequence[StoredMessage]
    ) -> None:
        connection, component = self._connection, self._component
        try:
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
