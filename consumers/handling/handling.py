"""Deciding what each message of a batch brings about; nothing here writes to the log."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import Rollback
from psycopg.pq import TransactionStatus

from consumers.calls.blame import before, blamed
from consumers.calls.handler_call import guarded
from consumers.dead_letters.corrections import Corrections
from consumers.dead_letters.failure import HandlerRaisedError, Reason
from consumers.dead_letters.letters import DeadLetters
from consumers.decisions.blocking import Blocking, FailurePolicy
from consumers.decisions.decisions import Decisions
from consumers.group.positions import Positions
from consumers.handling.batch_decoding import BatchDecoding
from consumers.handling.concurrent_handling import ConcurrentHandling
from consumers.handling.decoding import Decoded, Decoding
from consumers.handling.message_handling import MessageHandling
from consumers.handling.redelivery import further_before, handled_before
from consumers.runtime.context import ConsumerContext
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.entity.cache import NONE_READ, EntityCache, LastEvents
from reservation.entity.snapshots import Snapshots
from reservation.errors import MessageError
from reservation.handlers.copying import equivalent_copy
from reservation.idempotence.strategy import Incoming, Strategy
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import TO_BE_RETRIED
from reservation.store.client import MessageStore

# After how many messages there is a pause.
_PAUSE = 32


def _no_pause() -> None:
    """Go on at once."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Messages to decide on, with all that is needed for it.

    Attributes:
        messages: the messages, in their order.
        decoded: those to be handled or reserved, decoded.
        handled: the ids of those that were handled before.
        blocking: where messages that fail are set aside.
        decisions: what was decided on the others, and the entities.
    """

    messages: Sequence[StoredMessage]
    decoded: Sequence[Decoded]
    handled: frozenset[str]
    blocking: Blocking
    decisions: Decisions


class Handling:
    """How one consumer of a component decides on the messages of its category.

    Attributes:
        own: the types of messages that are handled here in a transaction of their own.
        at_hand: the messages that were decided on last, until they are committed; for a crash to
            name them.
        shares_lines: whether letters in partitions of others may hold up messages.
    """

    shares_lines = False

    def __init__(
        self,
        context: ConsumerContext,
        snapshots: Snapshots | None,
        corrections: Corrections,
        batch_bytes: int,
    ) -> None:
        self._batch_bytes = batch_bytes
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
        self._messages = MessageHandling(context)
        self._concurrently = (
            ConcurrentHandling(context, self._messages, self._decoding)
            if self._declared.concurrency
            else None
        )
        self._last_categories: list[str] = []
        self._lines = DeadLetters(component.name, context.category)
        # A category that has only reservations is led by the ids of entities, if it has partitions.
        self._may_mislead = (
            context.category == declared.command_category or context.category in declared.others
        )
        self.own = own_transaction(component, context.category)
        self._batch_decoding = BatchDecoding(context, self._decoding, corrections)
        self.at_hand: Sequence[StoredMessage] = ()

    def order(self, positions: Positions, letters: Mapping[int, str | None] | None = None) -> None:
        """Note which messages may come out of the order of their entity."""
        self._decoding.order(positions.unordered_until, letters)
        self.shares_lines = letters is None and self._may_mislead and positions.are_shared

    def committed(self) -> None:
        """Note that a batch was committed, and so all that was decided before the next one."""
        self._entities.committed()

    def roll_back(self) -> None:
        """Take the entities back, because what was decided on them was not written."""
        self._entities.roll_back()

    def forget(self) -> None:
        """Forget the entities, because what is known of them may not be so any more."""
        self._entities.clear()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Around a transaction that decides: an error takes the entities back, or forgets them."""
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
        """The categories that may be written, for care to hold off their other writers."""
        component = self._component
        categories = {
            component.name,
            *declarations(component).reservation_categories,
            *self._last_categories,
        }
        for strategy in self._declared.strategies.values():
            categories.update(strategy.categories(component.name))
        return sorted(categories)

    def plan(
        self,
        store: MessageStore,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        as_sent: Mapping[int, StoredMessage],
        *,
        careful: bool,
        policy: FailurePolicy,
        events: LastEvents = NONE_READ,
    ) -> Decisions:
        """Decide on messages; with care, pass those that were handled before."""
        with self._calling(messages):
            if careful:
                decisions = self._decide_carefully(store, messages, key_streams, policy, as_sent)
            else:
                decisions = self._decide(
                    store, messages, key_streams, policy, as_sent, events=events
                )
        decisions.corrected.update(
            (message.global_position, message.data)
            for message in messages
            if message.global_position in as_sent and message.data is not None
        )
        self._last_categories = decisions.categories
        return decisions

    def prepare(
        self,
        store: MessageStore,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        policy: FailurePolicy,
    ) -> Prepared:
        """Return messages with all that is needed to decide on them without the connection."""
        with self._calling(messages):
            prepared = self._prepare(messages, key_streams, policy, {})
            self._load(store, prepared)
            return prepared

    def decide(self, prepared: Prepared, pause: Callable[[], None]) -> Decisions:
        """Decide on what `prepare` returned, as `plan` does."""
        with self._calling(prepared.messages):
            decisions = self._decided(prepared, pause)
        self._last_categories = sorted({*self._last_categories, *decisions.categories})
        return decisions

    @property
    def is_apart(self) -> bool:
        """Whether the connection is not needed between reading messages and writing effects.

        As far as it is known: a handler may ask for the connection for the first time.
        """
        return (
            not self.own
            and not self._declared.strategies
            and self._concurrently is None
            and self._context.spans.tracing is None
            and not self._messages.gave_connection
        )

    @property
    def is_sound(self) -> bool:
        """Whether the transaction at hand can be committed."""
        return self._context.connection.info.transaction_status is TransactionStatus.INTRANS

    @contextmanager
    def _calling(self, messages: Sequence[StoredMessage]) -> Iterator[None]:
        """Around calls of the component's code for messages."""
        self.at_hand = messages
        with (
            blamed(messages),
            guarded(self._context.connection, messages),
            self._context.log_context.entered(),
        ):
            yield

    def _decide_carefully(
        self,
        store: MessageStore,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        policy: FailurePolicy,
        as_sent: Mapping[int, StoredMessage],
    ) -> Decisions:
        """Decide, and pass what was handled before.

        A message that brought about no event shows that only by what its handler writes, once it
        is handled by itself. What the handler did is then rolled back.
        """
        redelivered = False
        tried = [
            message for message in messages if not policy.gives_up(message, Reason.PROCESS_DIED)
        ]
        handled = handled_before(store, tried, self._decoding, self._declared)
        with self._context.connection.transaction() as attempt:
            decisions = self._decide(store, messages, key_streams, policy, as_sent, handled)
            if len(messages) == 1 and any(further_before(store, decisions)):
                redelivered = True
                raise Rollback(attempt)
        if redelivered:
            self.roll_back()
            handled = frozenset([messages[0].id])
            return self._decide(store, messages, key_streams, policy, as_sent, handled)
        return decisions

    def _decide(
        self,
        store: MessageStore,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        policy: FailurePolicy,
        as_sent: Mapping[int, StoredMessage],
        handled: frozenset[str] = frozenset(),
        events: LastEvents = NONE_READ,
    ) -> Decisions:
        """Decide on a batch, in its order; pass those messages whose ids were handled before."""
        prepared = self._prepare(messages, key_streams, policy, as_sent, handled)
        self._load(store, prepared, events)
        return self._decided(prepared)

    def _prepare(
        self,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        policy: FailurePolicy,
        as_sent: Mapping[int, StoredMessage],
        handled: frozenset[str] = frozenset(),
    ) -> Prepared:
        decisions = Decisions()
        blocking = Blocking(policy, decisions, self._context.detail)
        decoded = self._batch_decoding.decode(
            messages, key_streams, blocking, handled, decisions, as_sent
        )
        if policy.looks:
            decoded = self._held_up(decoded, blocking)
        return Prepared(messages, decoded, handled, blocking, decisions)

    def _held_up(self, decoded: Sequence[Decoded], blocking: Blocking) -> list[Decoded]:
        """Park what comes after an open letter of its entity; return the other messages."""
        whose = [self._decoding.whose(item.message, item) for item in decoded]
        letters = (letter.entity for letter in blocking.letters)
        entities = {entity for entity in (*whose, *letters) if entity is not None}
        blocking.hold_up(self._lines.heads(self._context.connection, entities))
        return [
            item
            for item, entity in zip(decoded, whose, strict=True)
            if item.redelivered or not blocking.parks(item.message, entity)
        ]

    def _load(
        self, store: MessageStore, prepared: Prepared, events: LastEvents = NONE_READ
    ) -> None:
        """Load the entities of decoded messages, and let strategies look at these."""
        decoded, decisions = prepared.decoded, prepared.decisions
        with_state = self._declared.state_based
        entity_streams = (
            item.entity_stream
            for item in decoded
            if not item.redelivered and item.message.type not in with_state
        )
        names = dict.fromkeys(filter(None, entity_streams))
        decisions.entities = self._entities.load(store, names, events)
        self._context.log_context.leave_message()
        self._begin(decoded, decisions)

    def _decided(self, prepared: Prepared, pause: Callable[[], None] = _no_pause) -> Decisions:
        messages, decoded, decisions = prepared.messages, prepared.decoded, prepared.decisions
        blocking = prepared.blocking
        if self._concurrently is not None and self._concurrently.takes(decoded):
            self._concurrently.run(decoded, decisions, blocking)
        elif decoded:
            self._in_order(decoded, decisions, blocking, messages[0].global_position, pause)
        if decisions.ends_before is not None:
            end = before(messages, decisions.ends_before.global_position)
            out, handled = messages[end:], prepared.handled
            self._batch_decoding.leave_out(out, decoded, blocking, handled, decisions)
        if blocking.failed:
            blocking.settle()
        decisions.counts += Counter()  # without outcomes of which all were taken back
        return decisions

    def _in_order(
        self,
        decoded: Sequence[Decoded],
        decisions: Decisions,
        blocking: Blocking,
        first: int,
        pause: Callable[[], None],
    ) -> None:
        """Handle the messages of a batch one after the other, and collect what they bring about."""
        failed, whose = blocking.failed, self._decoding.whose
        for n, item in enumerate(decoded):
            if not n % _PAUSE:
                pause()
            if item.redelivered:  # what was remembered of it may be lost, or be older than is kept
                self._messages.remember(item, decisions)
            elif failed and blocking.parks(item.message, whose(item.message, item)):
                continue
            elif item.key_stream is not None:
                decisions.add_reservation(item.message, item.key_stream, item.former_stream)
            elif item.entity_stream is not None:
                if decisions.written >= self._batch_bytes and blocking.policy.in_part:
                    decisions.ends_before = item.message
                    return
                try:
                    self._messages.handle(item, item.entity_stream, decisions)
                except HandlerRaisedError as error:
                    message, policy = item.message, blocking.policy
                    in_part = policy.in_part and message.global_position > first
                    if not self._messages.undo(error, policy.tried(message), in_part=in_part):
                        raise
                    if error.is_decided and blocking.sets_aside(
                        message, whose(message, item), error
                    ):
                        continue
                    if not in_part:
                        raise
                    decisions.ends_before, decisions.failed = item.message, error
                    return
                except MessageError as error:
                    error.global_position = item.message.global_position
                    raise

    def _begin(self, decoded: Sequence[Decoded], decisions: Decisions) -> None:
        """Let the strategies of the handlers look at those messages that are theirs."""
        batches: dict[Strategy, list[Incoming]] = {}
        for item in decoded:
            strategy = self._declared[item.message.type].once
            if strategy is not None and item.entity_stream is not None:
                batches.setdefault(strategy, []).append(item.incoming)
        for strategy, batch in batches.items():
            decisions.checks[strategy] = strategy.begin(
                self._context.connection, self._component.name, self._context.category, batch
            )


def own_transaction(component: Component[Any], category: str) -> frozenset[str]:
    """Return the types of a category's messages that are handled in a transaction of their own."""
    table = declarations(component)
    declared = table.of(category)
    copied = declared.reservations if category == table.command_category else ()
    own = {name for name, one in declared.handled.items() if one.own_transaction}
    return frozenset(own.difference(declared.ignored, copied))


def _no_entity() -> None:
    """Stand for the entity of a component that has none."""
