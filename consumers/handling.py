"""Deciding what each message of a batch brings about; nothing here writes.

A command category holds commands that are reserved, that initiate, or that are handled on the
spot; a reservation category holds the copies, which are handled. Which is which, the component
says; where the copies are in the command category too, they say it themselves.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import Connection

from consumers.calling import call
from consumers.decisions import Decisions
from consumers.logs import Log
from consumers.parking import ALL_OR_NOTHING, Policy, Triage, blocking
from consumers.states import StateHandling
from reservation.component import Component
from reservation.context import Context
from reservation.entity.cache import EntityCache
from reservation.entity.projection import Loaded
from reservation.errors import (
    HandlerError,
    IdempotenceKeyError,
    MessageError,
    ReservationError,
    StreamNameError,
    UnknownTypeError,
    told,
)
from reservation.idempotence.pseudo_event import PSEUDO_EVENT, PseudoEvent
from reservation.idempotence.strategy import Incoming, Strategy
from reservation.message import StoredMessage, followed_id, printable
from reservation.store.client import MessageStore
from reservation.store.writing import Write
from reservation.stream_name import MAX_BYTES, cardinal_id, check

# Characters; however many bytes each takes, the store takes a name of that length.
SURELY_FITS = MAX_BYTES // 4


@dataclass(slots=True)
class _Decoded:
    """A stored message, the command in it, and the stream of the entity or the key it is for."""

    message: StoredMessage
    command: object = None
    entity_stream: str | None = None
    key_stream: str | None = None


class Handling:
    """How one consumer of a component deals with the messages of its category."""

    def __init__(
        self,
        connection: Connection[Any],
        component: Component,
        category: str,
        moves: Callable[[], None],
        log: Log,
    ) -> None:
        """Prepare to deal with a category.

        Args:
            connection: that of the transactions that read and write the batches.
            component: whose handlers decide.
            category: the component's command category, or one of its reservation categories.
            moves: called before each handler is, as a sign that the process is not stuck.
            log: where it is told what a handler did wrong.
        """
        self._connection = connection
        self._moves = moves
        self._component = component
        self._category = category
        self._reserves = category == component.command_category
        self._entities = EntityCache(
            component.entity or _no_entity,
            component.projection,
            snapshots=component.snapshots(connection),
        )
        self.states = StateHandling(connection, component, category, moves, log)
        self._log = log

    @property
    def alone(self) -> frozenset[str]:
        """The types of messages whose handlers have a transaction of their own."""
        component = self._component
        copied = set(component.reservations) - component.reserves_within if self._reserves else ()
        return frozenset(component.alone.difference(component.ignored, copied))

    @property
    def in_two_steps(self) -> frozenset[str]:
        """The types of messages whose handlers have a state, stored before they publish."""
        component = self._component
        copied = component.reservations if self._reserves else ()
        return frozenset(component.state_based).difference(component.ignored, copied)

    def forget(self) -> None:
        """Forget the entities, because what was decided on them was not written."""
        self._entities.clear()

    def decide(
        self,
        store: MessageStore,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        handled: frozenset[str] = frozenset(),
        policy: Policy = ALL_OR_NOTHING,
    ) -> Decisions:
        """Decide on a batch, in its order; where states come first, store these.

        Messages with such a state and others are not in one batch.

        Args:
            store: in the transaction that reads and writes the batch.
            messages: the batch.
            key_streams: for each, the stream that its key names, where the server has taken the
                key; None for a message that is there whole.
            handled: the ids of messages known to have been handled before, which are passed.
            policy: what becomes of those that can not be dealt with.

        Raises:
            MessageError: one of them can not be dealt with, and trying again may go better, or the
                policy is to stop.
        """
        decisions = Decisions()
        triage = Triage(policy, decisions)
        decoded: list[_Decoded] = []
        for message, key_stream in zip(messages, key_streams, strict=True):
            if message.id in handled:
                decisions.counts["redelivered"] += 1
                continue
            try:
                one = self._look(message, key_stream)
            except MessageError as error:
                triage.fails(message, self._whose(message), error)
                continue
            if one is None:
                decisions.counts["ignored"] += 1
            elif not (triage.anything_blocked and triage.takes(message, self._whose(message, one))):
                decoded.append(one)
        if decoded and decoded[0].message.type in self.in_two_steps:
            decisions.to_publish = self.states.store(
                [Incoming(one.message, one.command, str(one.entity_stream)) for one in decoded]
            )
            decisions.counts.update(decisions.to_publish.counts)
            return decisions
        entity_streams = dict.fromkeys(one.entity_stream for one in decoded if one.entity_stream)
        decisions.entities = self._entities.load(store, entity_streams)
        self._begin(decoded, decisions)
        for one in decoded:
            if one.key_stream is not None:
                decisions.reservations.append((one.message, one.key_stream))
            elif one.entity_stream is not None:
                self._handle(one, one.entity_stream, decisions)
        return decisions

    def written(self, decisions: Decisions) -> None:
        """Keep what strategies and snapshots need, in the transaction of the effects."""
        for one in decisions.checks.values():
            one.record()
        for stream_name in self._entities.written(decisions.entities):
            self._log.warning("snapshot_impossible", stream_name=printable(stream_name))

    def _begin(self, decoded: Sequence[_Decoded], decisions: Decisions) -> None:
        """Let the strategies of the handlers look at those messages that are theirs."""
        batches: dict[Strategy, list[Incoming]] = {}
        for one in decoded:
            strategy = self._component.strategies.get(one.message.type)
            if strategy is not None and one.entity_stream is not None:
                incoming = Incoming(one.message, one.command, one.entity_stream)
                batches.setdefault(strategy, []).append(incoming)
        for strategy, batch in batches.items():
            decisions.checks[strategy] = strategy.begin(
                self._connection, self._component.name, self._category, batch
            )

    def first_events(
        self, messages: Sequence[StoredMessage]
    ) -> Iterator[tuple[StoredMessage, uuid.UUID, str]]:
        """Give each message with the id and the stream that its handling's first event would have.

        Messages without data are to be reserved, and have none. Of those in two steps the versions
        of their states tell.
        """
        for message in messages:
            if message.data is None or message.type in self.in_two_steps:
                continue
            try:
                one = self._look(message, None)
            except MessageError:
                continue
            if one is not None and one.entity_stream is not None:
                event = followed_id(message.id, one.entity_stream, 0)
                yield message, event, one.entity_stream

    def _look(self, message: StoredMessage, key_stream: str | None) -> _Decoded | None:
        """Return the command in a message and what it is for, or None if its type is ignored.

        Raises:
            MessageError: that can not be told.
        """
        if key_stream is not None:
            return _Decoded(message, key_stream=_fitting(key_stream, message))
        component = self._component
        if message.type in component.ignored or message.type == PSEUDO_EVENT:
            return None
        is_reserved = message.type in component.reservations
        is_direct = message.type in component.initiations or message.type in component.handlers
        if not (is_reserved or (is_direct and self._reserves)):
            raise UnknownTypeError(
                f"Nothing handles {message}: declare a handler for {printable(message.type)} in "
                f"the component {component.name!r}, or let it pass with "
                f"{component.name}.ignore({printable(message.type)!r})"
            )
        command: object = message.decode(component.types[message.type])
        if is_reserved and self._reserves and not self._is_copy(message):
            return _Decoded(message, command, key_stream=self._key_stream(message, command))
        try:
            return _Decoded(message, command, component.entity_stream(command))
        except ReservationError as error:
            raise IdempotenceKeyError(f"Cannot handle {message}: {error}") from error

    def _is_copy(self, message: StoredMessage) -> bool:
        """Tell whether a message of the command category is a reserved copy."""
        return self._component.reservations[message.type].is_copy(message)

    def _key_stream(self, message: StoredMessage, command: object) -> str:
        try:
            declared = self._component.reservations[message.type]
            return declared.stream_name(command, message.stream_name)
        except IdempotenceKeyError as error:
            raise _no_key(message, error) from error
        except Exception as error:
            raise HandlerError(f"The key function for {message} raised {told(error)}") from error

    def _whose(self, message: StoredMessage, one: _Decoded | None = None) -> str | None:
        """Return the entity that a message is for: behind it, and behind which, others wait.

        Where there is no command to tell, the name of its stream does, unless that is named by the
        key alone.
        """
        component = self._component
        if one is not None and one.entity_stream is not None:
            return blocking(one.entity_stream)
        if one is not None and one.command is not None:
            with contextlib.suppress(ReservationError):
                return blocking(component.entity_stream(one.command))
        declared = component.reservations.get(message.type)
        if not self._reserves and declared is not None and declared.entity is None:
            return None
        id_ = cardinal_id(message.stream_name)
        return blocking(f"{component.name}-{id_}") if id_ else None

    def _handle(self, one: _Decoded, stream_name: str, decisions: Decisions) -> None:
        """Call the handler, apply its events to the entity and collect them to be written."""
        self._moves()
        message, component, loaded = one.message, self._component, decisions.entities[stream_name]
        initiation = component.initiations.get(message.type)
        if initiation is not None and loaded.started:
            decisions.reissued.append((message, stream_name))
            return
        incoming = Incoming(message, one.command, stream_name)
        strategy = component.strategies.get(message.type)
        check = None if strategy is None else decisions.checks[strategy]
        if check is not None and check.is_duplicate(incoming):
            decisions.counts["duplicate"] += 1
            return
        context = Context(message, entity_stream=stream_name, connection=self._connection)
        if initiation is not None:
            initiate = initiation.handler
            events: Sequence[object] = call(
                self._connection, message, lambda: initiate(one.command, context)
            )
            if not events:
                raise HandlerError(
                    f"The handler of {message} returned no event; a command that initiates must "
                    f"return the event that starts the stream"
                )
        else:
            handler = component.handlers[message.type]
            events = call(
                self._connection, message, lambda: handler(one.command, loaded.entity, context)
            )
        metadata = message.follow_metadata()
        if check is not None:
            events, metadata = check.effects(incoming, events, metadata)
        for ordinal, event in enumerate(events):
            write = Write(
                event,
                stream_name,
                id=followed_id(message.id, stream_name, ordinal),
                metadata=metadata,
                expected_version=loaded.version,
            )
            decisions.writes.append(write)
            self._apply(write, loaded, message)
        for write in context.writes:
            self._further(write, message, decisions)
        decisions.counts["handled"] += 1

    def _further(self, write: Write, message: StoredMessage, decisions: Decisions) -> None:
        """Collect a message that a handler wrote besides its events.

        If its stream is that of another entity of the batch, what is decided on that entity later
        is decided on this message too.
        """
        decisions.conditional |= write.expected_version is not None
        loaded = decisions.entities.get(write.stream_name)
        if loaded is not None and write.expected_version in (None, loaded.version):
            write = replace(write, expected_version=loaded.version)
            self._apply(write, loaded, message)
        decisions.writes.append(write)
        decisions.further.append(write)

    def _apply(self, write: Write, loaded: Loaded, message: StoredMessage) -> None:
        try:
            self._component.projection.apply(loaded.entity, write.message)
        except Exception as error:
            raise HandlerError(
                f"The projector of what {message} brings about raised {told(error)}"
            ) from error
        loaded.version += 1
        loaded.started = loaded.started or not isinstance(write.message, PseudoEvent)


def _fitting(key_stream: str, message: StoredMessage) -> str:
    """Return the name of a key's stream, as it came from the server, unless it is too long."""
    if len(key_stream) > SURELY_FITS:
        try:
            check(key_stream)
        except StreamNameError as error:
            raise _no_key(message, error) from error
    return key_stream


def _no_key(message: StoredMessage, error: ReservationError) -> IdempotenceKeyError:
    return IdempotenceKeyError(f"Cannot reserve {message}: {error}. Correct its sender")


def _no_entity() -> None:
    """Stand for the entity of a component that has none."""
