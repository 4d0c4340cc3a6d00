"""Deciding what each message of a batch brings about; nothing here writes."""

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from psycopg import Connection

from consumers.dead_letters.failure import Reason
from consumers.handling.blocking import ALL_OR_NOTHING, Blocking, FailurePolicy
from consumers.handling.decisions import Decisions
from consumers.handling.decoding import Decoded, Decoding
from consumers.handling.handler_call import call
from consumers.handling.two_phase import TwoPhaseHandling
from consumers.runtime.logs import Log
from reservation.component import Component
from reservation.context import Context
from reservation.entity.cache import EntityCache
from reservation.entity.projection import Loaded
from reservation.errors import HandlerError, MessageError, told
from reservation.handlers.copying import copied
from reservation.handlers.returned import encode_events, encode_further, events_of
from reservation.idempotence.strategy import Incoming, Strategy
from reservation.messages.message import StoredMessage, followed_id, printable
from reservation.messages.pseudo_event import PSEUDO_EVENT
from reservation.store.client import MessageStore
from reservation.store.writing import Row


class Handling:
    """How one consumer of a component deals with the messages of its category.

    Attributes:
        decoding: tells what its messages are for.
    """

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
        self._commands = component.commands
        self._category = category
        self._reserves = category == component.command_category
        self._entities = EntityCache(
            component.entity or _no_entity,
            component.projection,
            snapshots=component.snapshots(connection),
        )
        self.two_phase = TwoPhaseHandling(connection, component, category, moves, log)
        self._log = log
        self.decoding = Decoding(component, category)

    @property
    def alone(self) -> frozenset[str]:
        """The types of messages whose handlers have a transaction of their own."""
        component = self._component
        copied = set(component.reservations) - component.reserves_within if self._reserves else ()
        return frozenset(component.own_transaction.difference(component.ignored, copied))

    @property
    def stateful(self) -> frozenset[str]:
        """The types of messages whose handlers have a state, stored before they publish."""
        return frozenset(self._component.two_phase).difference(self._component.ignored)

    def is_two_phase(self, message: StoredMessage) -> bool:
        """Return whether a message's handler is called here and has a state.

        Of commands that are reserved within their category, only the copies are handled.
        """
        component = self._component
        if message.type not in self.stateful:
            return False
        if not self._reserves or message.type not in component.reservations:
            return True
        if message.type not in component.reserves_within or message.data is None:
            return False
        try:
            one = self.decoding.look(message, None)
        except MessageError:
            return False
        return one is not None and one.entity_stream is not None

    def forget(self) -> None:
        """Forget the entities, because what was decided on them was not written."""
        self._entities.clear()

    def decide(
        self,
        store: MessageStore,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        handled: frozenset[str] = frozenset(),
        policy: FailurePolicy = ALL_OR_NOTHING,
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
        triage = Blocking(policy, decisions)
        decoded: list[Decoded] = []
        look, whose = self.decoding.look, self.decoding.whose
        given_up = bool(policy.given_up)
        for message, key_stream in zip(messages, key_streams, strict=True):
            died = given_up and policy.gives_up(message, Reason.PROCESS_DIED)
            if died and not self.decoding.ignores(message):
                triage.takes(message, self.decoding.whose_unread(message))
                continue
            if message.id in handled:
                decisions.counts["redelivered"] += 1
                decoded.extend(self._redelivered(message, key_stream))
                continue
            try:
                one = look(message, key_stream)
            except MessageError as error:
                triage.fails(message, whose(message), error)
                continue
            if one is None:
                decisions.counts["ignored"] += 1
                continue
            if triage.anything_blocked:
                # Nothing waits for a message whose place in the order is not known.
                unplaced = one.unordered and policy.gives_up(message, Reason.KEY)
                if triage.takes(message, whose(message, None if unplaced else one)):
                    continue
            decoded.append(one)
        if decoded and self.is_two_phase(decoded[0].message):
            decisions.pending = self.two_phase.store([one.incoming for one in decoded])
            decisions.counts.update(decisions.pending.counts)
            return decisions
        entity_streams = (one.entity_stream for one in decoded if not one.redelivered)
        decisions.entities = self._entities.load(store, dict.fromkeys(filter(None, entity_streams)))
        self._begin(decoded, decisions)
        for one in decoded:
            if one.redelivered:  # what was remembered of it may be lost, or be older than is kept
                with contextlib.suppress(MessageError):
                    check = decisions.checks[self._component.strategies[one.message.type]]
                    check.is_duplicate(one.incoming)
            elif one.key_stream is not None:
                decisions.reservations.append((one.message, one.key_stream))
                if one.former_stream is not None:
                    decisions.former_streams[one.message.global_position] = one.former_stream
            elif one.entity_stream is not None:
                self._handle(one, one.entity_stream, decisions)
        return decisions

    def _redelivered(self, message: StoredMessage, key_stream: str | None) -> Iterator[Decoded]:
        """Give a message that was handled before, if a strategy is to remember it."""
        if message.type in self._component.strategies and not self.is_two_phase(message):
            with contextlib.suppress(MessageError):
                one = self.decoding.look(message, key_stream)
                if one is not None and one.entity_stream is not None:
                    yield replace(one, redelivered=True)

    def written(self, decisions: Decisions) -> None:
        """Keep what strategies and snapshots need, in the transaction of the effects."""
        for one in decisions.checks.values():
            one.record()
        for stream_name in self._entities.written(decisions.entities):
            self._log.warning("snapshot_impossible", stream_name=printable(stream_name))

    def _begin(self, decoded: Sequence[Decoded], decisions: Decisions) -> None:
        """Let the strategies of the handlers look at those messages that are theirs."""
        batches: dict[Strategy, list[Incoming]] = {}
        for one in decoded:
            strategy = self._component.strategies.get(one.message.type)
            if strategy is not None and one.entity_stream is not None:
                batches.setdefault(strategy, []).append(one.incoming)
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
            if message.data is None or self.is_two_phase(message):
                continue
            try:
                one = self.decoding.look(message, None)
            except MessageError:
                continue
            if one is not None and one.entity_stream is not None:
                event = followed_id(message.id, one.entity_stream, 0)
                yield message, event, one.entity_stream

    def _handle(self, one: Decoded, stream_name: str, decisions: Decisions) -> None:
        """Call the handler, apply its events to the entity and collect them to be written."""
        self._moves()
        message, component, loaded = one.message, self._component, decisions.entities[stream_name]
        initiation = component.initiations.get(message.type)
        if initiation is not None and loaded.started:
            decisions.reissued.append((message, stream_name))
            return
        incoming = one.incoming
        strategy = component.strategies.get(message.type)
        check = None if strategy is None else decisions.checks[strategy]
        if check is not None and check.is_duplicate(incoming):
            decisions.counts["duplicate"] += 1
            return
        context = Context(
            message,
            entity_stream=stream_name,
            connection=self._connection,
            unordered=one.unordered,
        )
        entity = None if initiation is not None else _lent(loaded, message)

        def handle() -> list[object]:
            if initiation is not None:
                returned = initiation.handler(one.command, context)
            else:
                returned = component.handlers[message.type](one.command, entity, context)
            return events_of(returned, message, self._commands, starts=initiation is not None)

        events: Sequence[object] = call(self._connection, message, handle)
        metadata = message.follow_metadata()
        if check is not None:
            events, metadata = check.effects(incoming, events, metadata)
        rows = encode_events(events, message, stream_name, metadata, loaded.version)
        further = encode_further(context.writes, message)
        for row in rows:
            decisions.writes.append(row)
            self._apply(row, loaded, message)
        for row in further:
            self._further(row, message, decisions)
        decisions.counts["handled"] += 1

    def _further(self, row: Row, message: StoredMessage, decisions: Decisions) -> None:
        """Collect a message that a handler wrote besides its events.

        If its stream is that of another entity of the batch, what is decided on that entity later
        is decided on this message too.
        """
        decisions.conditional |= row.expected_version is not None
        loaded = decisions.entities.get(row.stream_name)
        if loaded is not None and row.expected_version in (None, loaded.version):
            row = row._replace(expected_version=loaded.version)
            self._apply(row, loaded, message)
        decisions.writes.append(row)
        decisions.further.append(row)

    def _apply(self, row: Row, loaded: Loaded, message: StoredMessage) -> None:
        self._component.projection.apply_encoded(loaded.entity, row, message)
        loaded.version += 1
        loaded.started = loaded.started or row.type != PSEUDO_EVENT


def _lent(loaded: Loaded, message: StoredMessage) -> object:
    """Return a copy of an entity for a handler, so that only projectors change what is kept."""
    try:
        return copied(loaded.entity)
    except Exception as error:
        raise HandlerError(
            f"The {type(loaded.entity).__name__} that {message} is for cannot be copied for its "
            f"handler: {told(error)}; keep in an entity what `copy.deepcopy` can copy"
        ) from error


def _no_entity() -> None:
    """Stand for the entity of a component that has none."""
