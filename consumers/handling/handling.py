"""Deciding what each message of a batch brings about; nothing here writes to the log."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg import Rollback
from psycopg.pq import TransactionStatus

from consumers.calls.blame import before, blamed
from consumers.calls.handler_call import guarded
from consumers.dead_letters.corrections import Corrections
from consumers.dead_letters.failure import HandlerRaisedError, Reason
from consumers.decisions.blocking import Blocking, FailurePolicy
from consumers.decisions.decisions import Decisions
from consumers.decisions.next_attempt import decide_on
from consumers.group.positions import Positions
from consumers.handling.batch_decoding import BatchDecoding
from consumers.handling.concurrent_handling import ConcurrentHandling
from consumers.handling.decoding import Decoded, Decoding
from consumers.handling.message_handling import MessageHandling
from consumers.handling.redelivery import further_before, handled_before
from consumers.handling.transaction_needs import TransactionNeeds
from consumers.handling.two_phase import TwoPhaseHandling
from consumers.runtime.context import ConsumerContext
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
        needs: what transactions the messages need.
        at_hand: the messages that were decided on last, until they are committed; for a crash to
            name them.
    """

    def __init__(
        self,
        context: ConsumerContext,
        snapshots: Snapshots | None,
        corrections: Corrections,
        batch_bytes: int,
    ) -> None:
        """Prepare to decide.

        Args:
            context: the consumer.
            snapshots: those of the component's entities, None if it has none.
            corrections: those of the category's messages.
            batch_bytes: how many bytes of data a batch may write, about; it ends with the message
                whose handler reaches them.
        """
        self._batch_bytes = batch_bytes
        component = context.component
        self._context = context
        self._component = component
        self._declared = component.declared_in(context.category)
        self._decoding = Decoding(component, context.category)
        self._entities = EntityCache(
            component.entity or _no_entity,
            component.projection,
            snapshots=snapshots,
            copied=equivalent_copy,
            entering=context.log_context.enter_entity,
        )
        self._two_phase = TwoPhaseHandling(context)
        self._messages = MessageHandling(context)
        self._concurrently = (
            ConcurrentHandling(context, self._messages, self._decoding)
            if self._declared.concurrency
            else None
        )
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
        events: LastEvents = NONE_READ,
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
            events: the last events of entities, as far as they were read with the messages.

        Returns:
            The decisions on all messages; where the policy is to commit a batch in part, on those
            before the first whose handler raised, or that is too much to write with them.

        Raises:
            MessageError: a message cannot be handled, and trying again may go better, or the
                policy is to stop.
        """
        with self._calling(messages):
            if careful:
                decisions = self._decide_carefully(store, messages, key_streams, policy)
            else:
                decisions = self._decide(store, messages, key_streams, policy, events=events)
        decisions.corrected.update(corrected)
        self._last_categories = decisions.categories
        return decisions

    def prepare(
        self,
        store: MessageStore,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        policy: FailurePolicy,
    ) -> Prepared:
        """Return messages with all that is needed to decide on them without the connection.

        Args:
            store: in a transaction.
            messages: as for `plan`, like the others; see `is_apart`.
            key_streams: the streams that their keys name.
            policy: what becomes of messages that cannot be handled.

        Raises:
            MessageError: one of them cannot be decoded, or the server refused to read an entity.
        """
        with self._calling(messages):
            prepared = self._prepare(messages, key_streams, policy)
            self._load(store, prepared)
            return prepared

    def decide(self, prepared: Prepared, pause: Callable[[], None]) -> Decisions:
        """Decide on what `prepare` returned, as `plan` does.

        Args:
            prepared: the messages.
            pause: called now and then.
        """
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
            not self.needs.own
            and not self.needs.two_phase
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
            self.roll_back()
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
        events: LastEvents = NONE_READ,
    ) -> Decisions:
        """Decide on a batch, in its order; pass those messages whose ids were handled before."""
        prepared = self._prepare(messages, key_streams, policy, handled)
        decisions, decoded = prepared.decisions, prepared.decoded
        if not decoded or not self.needs.is_two_phase(decoded[0].message):
            self._load(store, prepared, events)
            return self._decided(prepared)
        try:
            decisions.pending = self._two_phase.store([item.incoming for item in decoded])
        except HandlerRaisedError as error:  # of which other states may have been stored
            decide_on(error, self._declared, policy.tried(error.message))
            raise
        decisions.counts.update(decisions.pending.counts)
        decisions.passes = decisions.pending.passes
        return decisions

    def _prepare(
        self,
        messages: Sequence[StoredMessage],
        key_streams: Sequence[str | None],
        policy: FailurePolicy,
        handled: frozenset[str] = frozenset(),
    ) -> Prepared:
        decisions = Decisions()
        blocking = Blocking(policy, decisions, self._context.detail)
        decoded = self._batch_decoding.decode(messages, key_streams, blocking, handled, decisions)
        return Prepared(messages, decoded, handled, blocking, decisions)

    def _load(
        self, store: MessageStore, prepared: Prepared, events: LastEvents = NONE_READ
    ) -> None:
        """Load the entities of decoded messages, and let strategies look at these."""
        decoded, decisions = prepared.decoded, prepared.decisions
        entity_streams = (item.entity_stream for item in decoded if not item.redelivered)
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
        """Handle the messages of a batch one after the other, and collect what they bring about.

        Args:
            decoded: the messages.
            decisions: where that is collected.
            blocking: where messages that fail are set aside.
            first: the global position of the first message of the batch.
            pause: called now and then.
        """
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
            strategy = self._declared.strategies.get(item.message.type)
            if strategy is not None and item.entity_stream is not None:
                batches.setdefault(strategy, []).append(item.incoming)
        for strategy, batch in batches.items():
            decisions.checks[strategy] = strategy.begin(
                self._context.connection, self._component.name, self._context.category, batch
            )


def _no_entity() -> None:
    """Stand for the entity of a component that has none."""
