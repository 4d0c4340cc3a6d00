"""Deciding what each message of a batch brings about; nothing here writes to the log."""

import contextlib
from collections.abc import Mapping, Sequence

from psycopg import Rollback

from consumers.calls.blame import blamed
from consumers.calls.handler_call import call, guarded
from consumers.dead_letters.corrections import Corrections
from consumers.dead_letters.failure import Reason
from consumers.decisions.blocking import FailurePolicy
from consumers.decisions.decisions import Decisions
from consumers.group.positions import Positions
from consumers.handling.batch_decoding import BatchDecoding
from consumers.handling.decoding import Decoded, Decoding
from consumers.handling.redelivery import further_before, handled_before
from consumers.handling.transaction_needs import TransactionNeeds
from consumers.handling.two_phase import TwoPhaseHandling
from consumers.runtime.context import ConsumerContext
from reservation.context import Context
from reservation.entity.cache import EntityCache
from reservation.entity.projection import Loaded
from reservation.entity.snapshots import Snapshots
from reservation.errors import HandlerError, MessageError, describe
from reservation.handlers.copying import copied
from reservation.handlers.reject import Reject
from reservation.handlers.returned import (
    encode_events,
    encode_further,
    encode_scheduled,
    events_of,
    with_trace,
)
from reservation.idempotence.in_events.event_causes import with_local
from reservation.idempotence.passes import Pass, PassReason
from reservation.idempotence.strategy import Incoming, Strategy
from reservation.messages.message import StoredMessage
from reservation.messages.pseudo_event import FIRST, PSEUDO_EVENT
from reservation.store.client import MessageStore
from reservation.store.writing import Row


class Handling:
    """How one consumer of a component decides on the messages of its category.

    Attributes:
        needs: what transactions the messages need.
        at_hand: the messages that were decided on last, until they are committed; for a crash to
            name them.
    """

    def __init__(
        self, context: ConsumerContext, snapshots: Snapshots | None, corrections: Corrections
    ) -> None:
        """Prepare to decide.

        Args:
            context: the consumer.
            snapshots: those of the component's entities, None if it has none.
            corrections: those of the category's messages.
        """
        component = context.component
        self._context = context
        self._component = component
        self._declared = component.declared_in(context.category)
        self._is_subscribed = context.category in component.subscribed
        self._commands = component.commands
        self._decoding = Decoding(component, context.category)
        self._entities = EntityCache(
            component.entity or _no_entity, component.projection, snapshots=snapshots
        )
        self._two_phase = TwoPhaseHandling(context)
        # With other strategies pseudo events of theirs may come first, and nobody relies on it.
        once = component.strategies.values()
        self._marks_first = bool(component.initiations) and all(one.two_phase for one in once)
        self._last_categories: list[str] = []
        self.needs = TransactionNeeds(component, context.category, self._decoding)
        self._batch_decoding = BatchDecoding(context, self._decoding, self.needs, corrections)
        self.at_hand: Sequence[StoredMessage] = ()

    def order(self, positions: Positions, letters: Mapping[int, str | None] | None = None) -> None:
        """Note which messages may come out of the order of their entity.

        Args:
            positions: what is held of the category.
            letters: by global position, the entity that has waited for each of the messages; None
                where they are read from the category.
        """
        self._decoding.order(positions.unordered_until, letters)

    def forget(self) -> None:
        """Forget the entities, because what was decided on them was not written."""
        self._entities.clear()

    @property
    def categories(self) -> list[str]:
        """The categories that may be written, for care to hold off their other writers."""
        component = self._component
        categories = {component.name, *component.reservation_categories, *self._last_categories}
        for strategy in self._declared.strategies.values():
            categories.update(strategy.categories(component.name))
        if component.reserves_within:
            categories.add(component.command_category)
        return sorted(categories)

    def plan(
        self,
        store: MessageStore,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        corrected: Mapping[int, str],
        *,
        careful: bool,
        policy: FailurePolicy,
    ) -> Decisions:
        """Decide on messages; with care, pass those that were handled before.

        Messages of a two-phase strategy and others are not in one batch. The states of a two-phase
        strategy are stored. Commit them, and do all else in a second transaction.

        Args:
            store: in the transaction that reads and writes the batch.
            messages: in their order.
            key_streams: for each, the stream that its key names, where the server has taken the
                key; None for a message that has its data.
            corrected: by global position, the data of those messages that have been corrected,
                which they have already.
            careful: whether to look for messages that were handled before.
            policy: what becomes of messages that cannot be handled.

        Raises:
            MessageError: a message cannot be handled, and trying again may go better, or the
                policy is to stop.
        """
        self.at_hand = messages
        with blamed(messages), guarded(self._context.connection, messages):
            if careful:
                decisions = self._decide_carefully(store, messages, key_streams, policy)
            else:
                decisions = self._decide(store, messages, key_streams, policy)
        decisions.corrected.update(corrected)
        self._last_categories = decisions.categories
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
        is handled by itself. What the handler did is then rolled back.
        """
        redelivered = False
        tried = [
            message for message in messages if not policy.gives_up(message, Reason.PROCESS_DIED)
        ]
        handled = handled_before(store, tried, self._decoding, self.needs)
        with self._context.connection.transaction() as attempt:
            decisions = self._decide(store, messages, key_streams, policy, handled)
            if len(messages) == 1 and any(further_before(store, decisions)):
                redelivered = True
                raise Rollback(attempt)
        if redelivered:
            self.forget()
            handled = frozenset([messages[0].id])
            return self._decide(store, messages, key_streams, policy, handled)
        return decisions

    def _decide(
        self,
        store: MessageStore,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        policy: FailurePolicy,
        handled: frozenset[str] = frozenset(),
    ) -> Decisions:
        """Decide on a batch, in its order; pass those messages whose ids were handled before."""
        decisions = Decisions()
        decoded = self._batch_decoding.decode(messages, key_streams, policy, handled, decisions)
        if decoded and self.needs.is_two_phase(decoded[0].message):
            decisions.pending = self._two_phase.store([item.incoming for item in decoded])
            decisions.counts.update(decisions.pending.counts)
            decisions.passes = decisions.pending.passes
            return decisions
        entity_streams = (item.entity_stream for item in decoded if not item.redelivered)
        decisions.entities = self._entities.load(store, dict.fromkeys(filter(None, entity_streams)))
        self._begin(decoded, decisions)
        for item in decoded:
            if item.redelivered:  # what was remembered of it may be lost, or be older than is kept
                with contextlib.suppress(MessageError):
                    check = decisions.checks[self._declared.strategies[item.message.type]]
                    check.is_duplicate(item.incoming)
            elif item.key_stream is not None:
                decisions.reservations.append((item.message, item.key_stream))
                if item.former_stream is not None:
                    decisions.former_streams[item.message.global_position] = item.former_stream
            elif item.entity_stream is not None:
                self._handle(item, item.entity_stream, decisions)
        return decisions

    def _begin(self, decoded: Sequence[Decoded], decisions: Decisions) -> None:
        """Let the strategies of the handlers look at those messages that are theirs."""
        batches: dict[Strategy, list[Incoming]] = {}
        for item in decoded:
            strategy = self._declared.strategies.get(item.message.type)
            if strategy is not None and item.entity_stream is not None:
                batches.setdefault(strategy, []).append(item.incoming)
        for strategy, batch in batches.items():
            decisions.checks[strategy] = strategy.begin(
                self._context.connection, self._component.name, self._context.category, batch
            )

    def _handle(self, item: Decoded, stream_name: str, decisions: Decisions) -> None:
        """Call the handler, apply its events to the entity and collect them to be written."""
        connection = self._context.connection
        self._context.heartbeat()
        message, component, loaded = item.message, self._component, decisions.entities[stream_name]
        declared = self._declared
        initiation = declared.initiations.get(message.type)
        if initiation is not None and loaded.started:
            decisions.reissued.append((message, stream_name))
            return
        incoming = item.incoming
        strategy = declared.strategies.get(message.type)
        check = None if strategy is None else decisions.checks[strategy]
        if check is not None and check.is_duplicate(incoming):
            decisions.counts["duplicate"] += 1
            # What the log shows, as long as it is there, is not recorded beside it.
            if self._is_subscribed and strategy is not None and not strategy.leaves_trace:
                decisions.passes.append(Pass(message, PassReason.DUPLICATE))
            return
        context = Context(
            message,
            entity_stream=stream_name,
            connection=connection,
            unordered=item.unordered,
        )
        entity = None if initiation is not None else _lent(loaded, message)

        def handle() -> list[object]:
            if initiation is not None:
                returned = initiation.handler(item.command, context)
            else:
                returned = declared.handlers[message.type](item.command, entity, context)
            return events_of(returned, message, self._commands, starts=initiation is not None)

        comes_late = self._marks_first and not loaded.started and loaded.version >= 0
        outcome = "handled"
        try:
            events: Sequence[object] = call(connection, message, handle)
        except Reject as reject:
            outcome = "rejected"
            events = [reject.event(message.type, starts=initiation is not None)]
            context.writes.clear()
            context.scheduled = ()
            loaded.started = loaded.started or initiation is not None
        metadata = message.follow_metadata()
        if check is not None:
            events, metadata = check.effects(incoming, events, metadata)
        if comes_late:
            metadata = with_local(metadata, FIRST, loaded.version + 1)
        if context.scheduled:
            events = with_trace(events, context.scheduled)
        written = component.types.written
        rows = encode_events(events, message, stream_name, metadata, loaded.version, written)
        further = encode_further(context.writes, message, written)
        component.check_written(further, message)
        if not rows and self._is_subscribed:
            reason = PassReason.WRITTEN if further else PassReason.NOTHING
            decisions.passes.append(Pass(message, reason))
        for row in rows:
            decisions.writes.append(row)
            self._apply(row, loaded, message)
        for row in further:
            self._further(row, message, decisions)
        if context.scheduled:
            scheduled = encode_scheduled(context.scheduled, message, written)
            component.check_written(scheduled, message)
            decisions.scheduled += scheduled
        decisions.counts[outcome] += 1

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
            f"handler: {describe(error)}; keep in an entity what `copy.deepcopy` can copy"
        ) from error


def _no_entity() -> None:
    """Stand for the entity of a component that has none."""
