"""What messages bring about: decided by the handlers, and written in the transaction at hand."""

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from psycopg import Connection, Rollback

from consumers.batch.blame import blamed
from consumers.dead_letters.failure import Reason
from consumers.group.positions import Positions
from consumers.handling.blocking import FailurePolicy
from consumers.handling.decisions import Decisions
from consumers.handling.handler_call import guarded
from consumers.handling.handling import Handling
from consumers.handling.two_phase import PendingOutputs
from consumers.runtime.logs import Log
from reservation.component import Component
from reservation.errors import (
    ExpectedVersionError,
    HandlerError,
    MessageError,
    MessageIdConflictError,
    RefusedError,
)
from reservation.idempotence.reserve import Outcome, compare_initiations, reserve
from reservation.messages.message import StoredMessage
from reservation.store.client import MessageStore
from reservation.store.statements import NO_STREAM
from reservation.store.writing import Row


class BatchEffects:
    """The effects of the messages of one category, for a batch of it or for letters.

    Attributes:
        at_hand: the messages that were decided on last; for a crash to name them.
    """

    def __init__(
        self,
        connection: Connection[Any],
        component: Component,
        category: str,
        moves: Callable[[], None],
        log: Log,
    ) -> None:
        """Prepare.

        Args:
            connection: that of the transactions.
            component: whose handlers decide.
            category: whose messages they are.
            moves: called before each handler is, as a sign that the process is not stuck.
            log: where it is told what a handler did wrong.
        """
        self._connection = connection
        self._component = component
        self._handling = Handling(connection, component, category, moves, log)
        self._wanted: list[str] = []
        self.at_hand: Sequence[StoredMessage] = ()

    def order(self, positions: Positions, letters: Mapping[int, str | None] | None = None) -> None:
        """Note which messages may come out of the order of their entity.

        Args:
            positions: what is held of the category.
            letters: by global position, the entity that has waited for each of the messages; None
                where they are read from the category.
        """
        self._handling.decoding.order(positions.unordered_until, letters)

    @property
    def alone(self) -> Collection[str]:
        """The types of messages whose handlers have a transaction of their own."""
        return self._handling.alone

    @property
    def stateful(self) -> Collection[str]:
        """The types of messages whose states are committed before the rest of their effects."""
        return self._handling.stateful

    def is_two_phase(self, message: StoredMessage) -> bool:
        """Return whether a message is handled here, and its state is committed first."""
        return self._handling.is_two_phase(message)

    def forget(self) -> None:
        """Forget what was decided, because it was not committed."""
        self._handling.forget()

    def store(self, careful: bool) -> MessageStore:
        """Return the store, other writers held off if care is to be taken."""
        store = MessageStore(self._connection)
        if careful:
            component = self._component
            written = [
                component.name,
                *component.reservation_categories,
            ]
            for strategy in set(component.strategies.values()):
                written += strategy.categories(component.name)
            if component.reserves_within:
                written.append(component.command_category)
            store.lock_categories([*written, *self._wanted])
        return store

    def decide(
        self,
        store: MessageStore,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        careful: bool,
        policy: FailurePolicy,
    ) -> Decisions:
        """Decide on messages; with care, pass what was handled before.

        Where states come first, these are stored. Commit them, and do all else in a second
        transaction.

        Args:
            store: as `store` returned it.
            messages: in their order.
            key_streams: for each, the stream that its key names, if the server has taken that.
            careful: whether to look for those that were handled before.
            policy: what becomes of those that can not be dealt with.

        Raises:
            MessageError: one of them can not be dealt with.
        """
        self.at_hand = messages
        with blamed(messages), guarded(self._connection, messages):
            if careful:
                decisions = self._decide_carefully(store, messages, key_streams, policy)
            else:
                decisions = self._handling.decide(store, messages, key_streams, policy=policy)
        self._wanted = decisions.categories
        return decisions

    def _decide_carefully(
        self,
        store: MessageStore,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        policy: FailurePolicy,
    ) -> Decisions:
        """Decide, and pass what was handled before.

        A message that brought about no event shows that only by what its handler writes, once it
        is alone: what the handler did is taken back then.
        """
        decide, redelivered = self._handling.decide, False
        tried = [
            message for message in messages if not policy.gives_up(message, Reason.PROCESS_DIED)
        ]
        handled = self._handled_before(store, tried)
        with self._connection.transaction() as attempt:
            decisions = decide(store, messages, key_streams, handled, policy)
            if len(messages) == 1 and any(self._further_before(store, decisions)):
                redelivered = True
                raise Rollback(attempt)
        if redelivered:
            self._handling.forget()
            return decide(store, messages, key_streams, frozenset([messages[0].id]), policy)
        return decisions

    def carry_out(
        self,
        store: MessageStore,
        decisions: Decisions,
        messages: Sequence[StoredMessage],
        careful: bool,
    ) -> None:
        """Write what was decided, under the locks of its categories.

        Raises:
            MessageError: it can not be written.
            ExpectedVersionError, MessageIdConflictError: another writer was first, or a message
                was handled before; run the transaction again, carefully.
        """
        if decisions.pending is not None:
            _publish(store, decisions.pending, careful=careful)
            return
        try:
            with blamed(messages):
                self._write(store, decisions)
                self._handling.written(decisions)
        except (ExpectedVersionError, MessageIdConflictError) as error:
            if careful:
                _blame(error, decisions, messages)
            raise

    def _write(self, store: MessageStore, decisions: Decisions) -> None:
        connection, component = self._connection, self._component
        for write_id in self._further_before(store, decisions):
            raise MessageIdConflictError(f"The message {write_id} was written before")
        _refuse_redelivery(decisions.writes, store.write_encoded(decisions.writes))
        outcomes = reserve(
            connection,
            [(command.global_position, name) for command, name in decisions.reservations],
            component.volatile("reserve"),
            _former(decisions),
        )
        reissued = compare_initiations(
            connection,
            [(command.global_position, name) for command, name in decisions.reissued],
            component.volatile("initiate"),
        )
        for (command, name), outcome in zip(decisions.reservations, outcomes, strict=True):
            if outcome is Outcome.CONFLICT:
                name = _reserved_in(store, decisions, command, name)
            decisions.tell(command, name, outcome)
        for (command, name), outcome in zip(decisions.reissued, reissued, strict=True):
            decisions.tell(command, name, outcome)

    def _further_before(self, store: MessageStore, decisions: Decisions) -> Iterator[uuid.UUID]:
        """Give the ids of the further messages that are stored already, where they belong."""
        if decisions.further:
            stored = store.stored_ids([row.id for row in decisions.further])
            for row in decisions.further:
                if stored.get(row.id) == row.stream_name:
                    yield row.id

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


def _publish(store: MessageStore, pending: PendingOutputs, *, careful: bool) -> None:
    """Write the outputs of a two-phase strategy, and mark what they are of as published.

    Raises:
        MessageError: the store refuses an output.
        MessageIdConflictError: an id of an output is in use; once more, carefully, that is a
            MessageError.
    """
    try:
        store.write_encoded(pending.rows)
    except (RefusedError, MessageIdConflictError) as error:
        if isinstance(error, MessageIdConflictError) and not careful:
            raise
        raise MessageError(
            f"Cannot publish what follows {pending.check.described}: {error}"
        ) from error
    pending.check.publish()


def _reserved_in(
    store: MessageStore, decisions: Decisions, command: StoredMessage, name: str
) -> str:
    """Return the stream of the command that one is in conflict with: the former, if it is there."""
    former = decisions.former_streams.get(command.global_position)
    if former is None or store.stream_version(former) == NO_STREAM:
        return name
    return former


def _former(decisions: Decisions) -> list[str | None] | None:
    """Return the former stream of each command to be reserved; None if none has one."""
    if not decisions.former_streams:
        return None
    return [
        decisions.former_streams.get(command.global_position)
        for command, _ in decisions.reservations
    ]


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


def _refuse_redelivery(rows: Sequence[Row], positions: Sequence[int]) -> None:
    """Make sure that every event is where the decisions took it to be.

    An event that was stored before is passed over by the store; what was decided after it was
    decided on an entity that had it twice.
    """
    for row, position in zip(rows, positions, strict=True):
        if row.expected_version is not None and position != row.expected_version + 1:
            raise MessageIdConflictError(
                f"The event {row.id} in {row.stream_name} was written before, at {position}"
            )
