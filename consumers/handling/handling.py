"""Deciding on the effects of a batch's messages; nothing here writes to the log."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import Rollback

from consumers.calls.blame import before, blamed
from consumers.calls.handler_call import guarded
from consumers.dead_letters.corrections import Corrections
from consumers.effects.blocking import Blocking, FailurePolicy
from consumers.effects.effects import Effects
from consumers.failures.failure import HandlerRaisedError, Reason
from consumers.failures.letters import DeadLetters
from consumers.failures.retries import Retries
from consumers.group.positions import HeldPartitions
from consumers.handling.batch_decoding import BatchDecoding
from consumers.handling.concurrent.concurrent_handling import ConcurrentHandling
from consumers.handling.decoding import Decoded, Decoding
from consumers.handling.message_handling import MessageHandling
from consumers.handling.read_handling import ReadHandling
from consumers.handling.redelivery import further_before, handled_before
from consumers.limits.limits import Limits
from consumers.runtime.context import ConsumerContext
from reservation.declaration.table import declarations
from reservation.entity.cache import NONE_READ, EntityCache, LastEvents
from reservation.entity.snapshots import Snapshots
from reservation.errors import MessageError
from reservation.handlers.copying import equivalent_copy
from reservation.idempotence.strategy import Check, Incoming, Strategy
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import TO_BE_RETRIED
from reservation.store.client import MessageStore
from reservation.store.statements import Statement, run_together


@dataclass(frozen=True, slots=True)
class PreparedMessages:
    """Messages that are decoded, with the entities that they are for.

    Attributes:
        messages: all of them, in their order.
        decoded: those to be handled or reserved.
        handled: the ids of those that were handled before.
        effects: what became of the others, and the entities.
        blocking: where messages that fail are set aside.
    """

    messages: Sequence[StoredMessage]
    decoded: list[Decoded]
    handled: frozenset[str]
    effects: Effects
    blocking: Blocking


class Handling:
    """Decides on the messages of its category for one consumer of a component.

    Attributes:
        uncommitted: the messages that were decided on last, until they are committed; a
            crash names them.
        checks_open_letters: whether letters in partitions of others may hold up messages.
    """

    checks_open_letters = False

    def __init__(
        self,
        context: ConsumerContext,
        snapshots: Snapshots | None,
        corrections: Corrections,
        limits: Limits | None = None,
    ) -> None:
        component = context.component
        declared = declarations(component)
        self._context = context
        self._component = component
        self._declared = declared.of(context.category)
        self._decoding = Decoding(component, context.category)
        self._entities = EntityCache(
            component.entity or _no_entity,
            declared.projection,
            snapshots=snapshots,
            copied=equivalent_copy,
            entering=context.log_context.enter_entity,
        )
        self._limits = limits
        self._messages = MessageHandling(context, limits)
        self._concurrently = (
            ConcurrentHandling(context, self._messages, self._decoding)
            if self._declared.concurrency
            else None
        )
        self._reads = (
            ReadHandling(context, self._messages, self._decoding)
            if self._declared.is_read
            else None
        )
        self._last_categories: list[str] = []
        self._dead_letters = DeadLetters(component.name, context.category)
        self._retries = Retries(component, context.category, context.detail)
        # A category that has only reservations is led by the ids of entities, if it has partitions.
        # The entities of a read model are the streams that it reads.
        self._entities_span_partitions = self._reads is None and (
            context.category == declared.command_category or context.category in declared.others
        )
        self._batch_decoding = BatchDecoding(context, self._decoding, corrections)
        self.uncommitted: Sequence[StoredMessage] = ()
        self._are_letters = False

    def order(
        self, positions: HeldPartitions, letters: Mapping[int, str | None] | None = None
    ) -> None:
        """Begin a batch, or letters, and note which messages may come out of order."""
        self.uncommitted = ()
        self._decoding.order(positions.unordered_until, letters)
        self._are_letters = letters is not None
        self.checks_open_letters = (
            letters is None and self._entities_span_partitions and positions.are_shared
        )

    def committed(self) -> None:
        """Note that what was decided on is committed."""
        if self._concurrently is not None:
            self._concurrently.committed(self.uncommitted)
        self.uncommitted = ()
        self._entities.committed()

    def resume(self, messages: Sequence[StoredMessage], effects: Effects | None) -> None:
        """Note messages that are uncommitted again, and what was decided on them."""
        self.uncommitted = messages
        self._context.in_flight.takes(messages)
        if effects is not None:
            self._last_categories = effects.categories

    def roll_back(self) -> None:
        """Take the entities back, because what was decided on them was not written."""
        if self._concurrently is not None:
            self._concurrently.roll_back()
        self._entities.roll_back()

    def forget(self) -> None:
        """Forget the entities, because what is known of them may not be so any more."""
        self._entities.clear()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Run a transaction that decides; an error takes the entities back, or forgets them."""
        try:
            yield
        except (MessageError, *TO_BE_RETRIED):
            self.roll_back()
            raise
        except BaseException:
            self.forget()
            raise

    @property
    def categories(self) -> list[str]:
        """The categories that may be written, for a recheck to hold off their other writers."""
        component = self._component
        categories = {
            component.name,
            *declarations(component).reservation_categories,
            *self._last_categories,
        }
        for strategy in self._declared.strategies.values():
            categories.update(strategy.categories(component.name))
        return sorted(categories)

    @property
    def needs_connection(self) -> bool:
        """Whether deciding on messages may need the connection, as far as is known.

        A handler may ask for it for the first time.
        """
        return bool(
            self._messages.connection_used
            or self._reads is not None
            or self._declared.strategies
            or self._concurrently is not None
            or self._context.spans.tracing is not None
        )

    def prepare(
        self,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        policy: FailurePolicy,
    ) -> PreparedMessages:
        """Prepare to decide on messages after those that are not committed yet."""
        self._context.in_flight.adds(messages)
        with self._calling(messages):
            prepared = self._prepare(messages, key_streams, policy, {})
            self._load(prepared.decoded, prepared.effects, NONE_READ, committed=False)
        return prepared

    def decide(self, prepared: PreparedMessages) -> Effects:
        """Decide on messages that are prepared, without the connection."""
        with self._calling(prepared.messages):
            return self._decided(prepared)

    def plan(
        self,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        as_sent: Mapping[int, StoredMessage],
        *,
        recheck: bool,
        policy: FailurePolicy,
        events: LastEvents = NONE_READ,
    ) -> Effects:
        """Decide on messages; with a recheck, pass those that were handled before."""
        self.uncommitted = messages
        self._context.in_flight.takes(messages, are_letters=self._are_letters)
        with self._calling(messages):
            if recheck:
                effects = self._decide_again(messages, key_streams, policy, as_sent)
            else:
                effects = self._decide(messages, key_streams, policy, as_sent, events=events)
        effects.corrected.update(
            (message.global_position, message.data)
            for message in messages
            if message.global_position in as_sent and message.data is not None
        )
        self._last_categories = effects.categories
        return effects

    @contextmanager
    def _calling(self, messages: Sequence[StoredMessage]) -> Iterator[None]:
        """Run calls of the component's code for messages."""
        with (
            blamed(messages),
            guarded(self._context.connection, messages),
            self._context.log_context.entered(),
        ):
            try:
                yield
            finally:
                self._context.in_flight.returned()

    def _decide_again(
        self,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        policy: FailurePolicy,
        as_sent: Mapping[int, StoredMessage],
    ) -> Effects:
        """Decide, and pass what was handled before.

        A message without events is recognized by the further messages of its handler, if it is
        handled by itself. What the handler did is then rolled back.
        """
        redelivered = False
        store = MessageStore(self._context.connection)
        died = {n for n, one in policy.failed.items() if one.reason is Reason.PROCESS_DIED}
        tried = [message for message in messages if message.global_position not in died]
        handled = handled_before(store, tried, self._decoding, self._declared)
        with self._context.connection.transaction() as attempt:
            effects = self._decide(messages, key_streams, policy, as_sent, handled)
            if len(messages) == 1 and any(further_before(store, effects)):
                redelivered = True
                raise Rollback(attempt)
        if redelivered:
            self.roll_back()
            handled = frozenset([messages[0].id])
            return self._decide(messages, key_streams, policy, as_sent, handled)
        return effects

    def _decide(
        self,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        policy: FailurePolicy,
        as_sent: Mapping[int, StoredMessage],
        handled: frozenset[str] = frozenset(),
        events: LastEvents = NONE_READ,
    ) -> Effects:
        """Decide on a batch, in its order; skip messages whose ids were handled before."""
        prepared = self._prepare(messages, key_streams, policy, as_sent, handled)
        self._load(prepared.decoded, prepared.effects, events)
        return self._decided(prepared)

    def _prepare(
        self,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        policy: FailurePolicy,
        as_sent: Mapping[int, StoredMessage],
        handled: frozenset[str] = frozenset(),
    ) -> PreparedMessages:
        """Decode messages."""
        if self._concurrently is not None:
            self._concurrently.begin()
        effects = Effects()
        blocking = Blocking(policy, effects, self._retries)
        decoded = self._batch_decoding.decode(
            messages, key_streams, blocking, handled, effects, as_sent
        )
        if policy.looks:
            decoded = self._held_up(decoded, blocking)
        return PreparedMessages(messages, decoded, handled, effects, blocking)

    def _decided(self, prepared: PreparedMessages) -> Effects:
        """Decide on messages that are prepared."""
        decoded, effects, blocking = prepared.decoded, prepared.effects, prepared.blocking
        if self._limits is not None:
            self._limits.begin(blocking.policy.limited)
            for item in decoded:
                if item.entity_stream is not None and not item.redelivered:
                    self._limits.expects(item.message, item.command)
        if self._concurrently is not None and self._concurrently.applies_to(decoded):
            self._concurrently.run(decoded, effects, blocking)
        elif decoded and self._reads is not None:
            self._reads.run(decoded, effects, blocking)
        elif decoded:
            self._in_order(decoded, effects, blocking)
        if effects.ends_before is not None:
            messages = prepared.messages
            out = messages[before(messages, effects.ends_before.global_position) :]
            self._batch_decoding.leave_out(out, decoded, blocking, prepared.handled, effects)
        if blocking.heads:
            blocking.settle()
        if self._concurrently is not None:
            self._concurrently.decided(effects)
        effects.counts += Counter()  # drops outcomes whose count is 0
        return effects

    def _held_up(self, decoded: Sequence[Decoded], blocking: Blocking) -> list[Decoded]:
        """Park what comes after an open letter of its entity; return the other messages."""
        of_decoded = [self._decoding.entity_of(item.message, item) for item in decoded]
        letters = (letter.entity for letter in blocking.letters)
        entities = {entity for entity in (*of_decoded, *letters) if entity is not None}
        blocking.settle(self._dead_letters.heads(self._context.connection, entities))
        return [
            item
            for item, entity in zip(decoded, of_decoded, strict=True)
            if item.redelivered or not blocking.parks(item.message, entity)
        ]

    def _load(
        self,
        decoded: Sequence[Decoded],
        effects: Effects,
        events: LastEvents,
        *,
        committed: bool = True,
    ) -> None:
        """Load the entities of decoded messages, and let strategies look at these, together."""
        if self._reads is not None:
            return
        with_state = self._declared.state_based
        entity_streams = (
            item.entity_stream
            for item in decoded
            if not item.redelivered and item.message.type not in with_state
        )
        names = dict.fromkeys(filter(None, entity_streams))
        loading = self._entities.load(names, events, committed=committed)
        looks = self._looks(decoded)
        group: list[Statement[Any]] = [*looks.values()]
        if loading.reading is not None:
            group.append(loading.reading)
        results = run_together(self._context.connection, group) if group else []
        read = [] if loading.reading is None else results.pop()
        effects.checks.update(zip(looks, results, strict=True))
        effects.entities = loading.finish(read)
        self._context.log_context.leave_message()

    def _in_order(self, decoded: Sequence[Decoded], effects: Effects, blocking: Blocking) -> None:
        """Handle the messages of a batch one after the other, and collect their effects."""
        heads, entity_of = blocking.heads, self._decoding.entity_of
        may_end = blocking.policy.tried is None
        for item in decoded:
            if item.redelivered:  # what was remembered of it may be lost, or be older than is kept
                self._messages.remember(item, effects)
            elif heads and blocking.parks(item.message, entity_of(item.message, item)):
                continue
            elif item.key_stream is not None:
                effects.add_reservation(item.message, item.key_stream, item.former_stream)
            elif item.entity_stream is not None:
                if may_end and effects.written >= self._context.options.batch_bytes:
                    effects.ends_before = item.message
                    return
                # The first is handled in any case, so that there is something to commit.
                if self._context.is_paused and item is not decoded[0]:
                    if may_end:
                        effects.ends_before = item.message
                        return
                    blocking.runs(item.message, entity_of(item.message, item))
                    continue
                try:
                    limit = self._messages.handle(item, item.entity_stream, effects)
                except HandlerRaisedError as error:
                    if not self._messages.undo(error):
                        raise
                    blocking.fails(item.message, entity_of(item.message, item), error)
                    continue
                except MessageError as error:
                    error.global_position = item.message.global_position
                    raise
                if limit is not None:
                    blocking.waits(item.message, entity_of(item.message, item), limit)

    def _looks(self, decoded: Sequence[Decoded]) -> dict[Strategy, Statement[Check]]:
        """Return what each of the handlers' strategies looks at its messages with."""
        batches: dict[Strategy, list[Incoming]] = {}
        for item in decoded:
            strategy = self._declared[item.message.type].once
            if strategy is not None and item.entity_stream is not None:
                batches.setdefault(strategy, []).append(item.incoming)
        return {
            strategy: strategy.look(self._component.name, self._context.category, batch)
            for strategy, batch in batches.items()
        }


def _no_entity() -> None:
    """Make no entity, for a component that has none."""
