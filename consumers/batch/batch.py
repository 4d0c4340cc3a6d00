"""One batch, one transaction: read, decide, write, move the position, commit.

A crash at any point leaves nothing behind, and the batch is read again. Handlers run before
anything is written, so the category locks are held only for the writes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from consumers.batch.asking import Asking
from consumers.batch.batch_size import DEFAULT_BATCH_BYTES
from consumers.batch.effects import BatchEffects
from consumers.batch.letter_transaction import RetryTransaction
from consumers.batch.looking_ahead import LookingAhead
from consumers.batch.reading import BatchReading, Opening, ReadBatch, WithEvents
from consumers.batch.reserving_next import Reserved, ReservingNext
from consumers.calls.blame import before, transaction
from consumers.dead_letters.corrections import Corrections
from consumers.dead_letters.failure import Letter
from consumers.dead_letters.letters import DeadLetters
from consumers.decisions.blocking import ALL_OR_NOTHING, FailurePolicy
from consumers.group.positions import NotMovedError, Positions
from consumers.handling.handling import Handling
from consumers.handling.same_intent import key_fields
from consumers.runtime.context import ConsumerContext
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.entity.cache import NONE_READ
from reservation.errors import MessageError
from reservation.idempotence.reserve import ConflictFoundError
from reservation.idempotence.server_keys import Commands
from reservation.messages.message import StoredMessage
from reservation.postgres.exchange.request import Request
from reservation.store.client import MessageStore
from reservation.store.partition import Partition
from reservation.store.statements import lock_categories

# So few messages are written and committed in one round trip.
_FEW = 100


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The outcome of a batch.

    Attributes:
        part: which part of the category it was for; None if nothing of it is held.
        to: the global position up to which the messages of this part are handled now.
        read: how many messages it had.
        counts: how many of them were handled, rejected, reserved, duplicates, conflicts, ignored,
            redelivered, differing (redelivered, and handled otherwise), dead or parked.
        conflicts: the commands in conflict with an earlier one, and the stream of their key.
        letters: the messages that were passed without having been handled.
        tried: attempts that failed and were followed by others.
        blocked: the entities whose later messages wait behind those.
        failed: the error of the handler whose message the batch ends before; that message is the
            next one. None if no handler raised such an error.
        ended: whether the batch is known to be the last one: when it was read, the category had
            nothing after it.
    """

    part: Partition | None
    to: int
    read: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    conflicts: Sequence[tuple[StoredMessage, str]] = ()
    letters: Sequence[Letter] = ()
    tried: Sequence[Letter] = ()
    blocked: Collection[str] = ()
    failed: MessageError | None = None
    ended: bool = False

    @property
    def moved(self) -> bool:
        """Whether a position moved; it does not at the end of the category."""
        return self.part is not None and self.to > self.part.after


class Batch:
    """How one consumer takes its category forward by a batch.

    Attributes:
        retry_transaction: how it handles letters again.
    """

    def __init__(self, context: ConsumerContext, batch_bytes: int = DEFAULT_BATCH_BYTES) -> None:
        component = context.component
        declared = declarations(component)
        snapshots = declared.snapshots(context.connection)
        self._context = context
        volatile = declared.ignoring(Role.INITIATE) | declared.ignoring(Role.RESERVE)
        self._corrections = Corrections(
            component.name, context.category, volatile if context.reserves else {}
        )
        self._handling = Handling(context, snapshots, self._corrections, batch_bytes)
        self._effects = BatchEffects(context, snapshots)
        self._dead_letters = DeadLetters(component.name, context.category)
        self._key_fields = partial(key_fields, declared.of(context.category))
        self._reading = BatchReading(context, self._handling.own, self._corrections, batch_bytes)
        self._reserving_next = ReservingNext(context, self._reading, self._handling.own)
        self._asking = Asking(context, self._reading, self._reserving_next)
        self._ahead = LookingAhead(self._handling, self._reading, context.log)
        self.retry_transaction = RetryTransaction(
            context, self._handling, self._effects, self._dead_letters
        )

    def run(
        self,
        positions: Positions,
        limit: int,
        *,
        careful: bool = False,
        policy: FailurePolicy = ALL_OR_NOTHING,
        looks_ahead: bool = False,
    ) -> BatchResult:
        """Take the category forward by up to ``limit`` messages."""
        self._handling.order(positions)
        attempt = partial(self._run, positions, limit, careful, policy)
        try:
            with self._handling.attempt(), self._context.spans.batch():
                try:
                    return self._take(
                        attempt, positions, limit, policy, careful=careful, looks_ahead=looks_ahead
                    )
                except ConflictFoundError:
                    self._handling.roll_back()
                    return attempt(at_once=False, looks_ahead=False)
                except NotMovedError:
                    raise positions.lost(self._context.connection) from None
        except BaseException:
            self._ahead.drop()
            raise

    @property
    def at_hand(self) -> Sequence[StoredMessage]:
        """The messages of the last batch, if it was not committed."""
        return self._handling.at_hand

    def before(self, error: MessageError) -> int | None:
        """Return how many messages of the last batch come before the one with which it failed.

        None if the error does not name that message.
        """
        return before(self.at_hand, error.global_position)

    def first(self, positions: Positions) -> StoredMessage | None:
        """Return the first message of the next batch; None at the end of the category."""
        return self._reading.first(positions)

    @property
    def has_decided(self) -> bool:
        """Whether there is a batch that was decided on ahead, and is not committed."""
        return self._ahead.has_decided

    @property
    def has_begun(self) -> bool:
        """Whether there is a batch that `run` has to take next: decided on, or asked for."""
        return self._ahead.has_decided or self._asking.is_asked

    def get_ready(self, positions: Positions, limit: int, policy: FailurePolicy) -> None:
        """Prepare what the next batch begins with, for `ask` to send it."""
        self._asking.get_ready(positions, limit, policy)

    def ask(self) -> None:
        """Send what was prepared, if anything was; then `run` has to be called next."""
        self._asking.ask()

    def _take(
        self,
        attempt: Callable[..., BatchResult],
        positions: Positions,
        limit: int,
        policy: FailurePolicy,
        *,
        careful: bool,
        looks_ahead: bool,
    ) -> BatchResult:
        """Reserve the next commands in one round trip if possible, else run the batch."""
        if careful:
            return attempt(at_once=False, looks_ahead=looks_ahead)
        if self._ahead.has_decided:
            return attempt(at_once=True, looks_ahead=looks_ahead)
        if not self._asking.is_asked:
            self._asking.get_ready(positions, limit, policy)
        opening, reserving = self._asking.take()
        if reserving is None:
            return attempt(opening, at_once=True, looks_ahead=looks_ahead)
        found = self._reserving_next.run(reserving)
        if not isinstance(found, Reserved):
            return attempt(known=found, at_once=found is not None, looks_ahead=looks_ahead)
        positions.committed(reserving.part, found.to)
        if found.read:
            self._reading.size.used_all()
        return BatchResult(reserving.part, found.to, found.read, found.counts, ended=found.ended)

    def _run(
        self,
        positions: Positions,
        limit: int,
        careful: bool,
        policy: FailurePolicy,
        opening: Opening[WithEvents] | None = None,
        *,
        known: Commands | None = None,
        at_once: bool,
        looks_ahead: bool,
    ) -> BatchResult:
        connection, handling = self._context.connection, self._handling
        blocked: Collection[str] = ()
        batch: ReadBatch | None = None
        part = self._reading.part(positions) if opening is None else opening.part
        if part is None:
            return BatchResult(None, 0)
        decided = self._ahead.take(part, limit, policy)
        size = self._reading.size.limit(limit)
        requests: list[Request] = []
        read: Callable[[Sequence[tuple[Any, ...]]], WithEvents] | None = None
        if opening is not None:
            read = opening.read
        elif decided is None and known is None:
            with_events = self._asking.was_small and not careful
            statement = self._reading.statement_to_decide(part, size, with_events=with_events)
            requests, read = [statement.request], statement.read
        if careful:
            requests.insert(0, lock_categories(handling.categories).request)
        shares_lines = handling.shares_lines
        if shares_lines:  # then no such batch was asked for or decided on before
            requests.append(self._dead_letters.has_open)
        first = requests if opening is None else opening.beginning
        with transaction(connection, lambda: batch.messages if batch else (), first) as answers:
            store = MessageStore(connection)
            if decided is None:
                commands, events = known or ([], []), NONE_READ
                if shares_lines:
                    ((has_open,),) = answers.pop().rows
                    policy = replace(policy, blocked=set(), looks=has_open)
                if read is not None:
                    commands, events = read(answers[-1].rows)
                # A message that is given up is the only one, and the component must not decode it.
                as_read = bool(policy.given_up)
                batch = self._reading.batch(positions, part, commands, size, as_read=as_read)
                if batch.to == part.after:
                    return BatchResult(part, batch.to)
                decisions = handling.plan(
                    store,
                    batch.messages,
                    batch.key_streams,
                    batch.as_sent,
                    careful=careful,
                    policy=policy,
                    events=events,
                )
            else:
                batch, decisions = decided.batch, decided.decisions
            if (next_ := decisions.ends_before) is not None:
                batch = batch.up_to(before(batch.messages, next_.global_position) or 0)
                if decisions.failed is None:
                    self._reading.size.used(len(batch.messages))
            # Of many messages too much would have to be done again where one is in conflict.
            is_few, following = len(batch.messages) <= _FEW, None
            looks_ahead = (
                looks_ahead
                and not decisions.reservations
                and self._ahead.may_follow(batch, size, policy)
            )
            if at_once and (is_few or looks_ahead):
                at_once = self._effects.is_one_statement(decisions)
                if at_once and looks_ahead:
                    following = self._ahead.read(store, positions, batch, size, policy)
            self._asking.was_read(batch)
            messages = handling.at_hand = batch.messages

            if at_once and (is_few or following is not None):
                moving = positions.advance(connection, part, batch.to, batch.last, or_fail=True)
                if following is None:
                    self._effects.commit(decisions, messages, moving)
                else:
                    later = self._ahead.after(following, size)
                    decide = partial(self._ahead.decide, following)
                    answer = self._effects.commit(decisions, messages, moving, decide, later)
                    self._ahead.keep(answer)
            else:
                moving = positions.advance(connection, part, batch.to, batch.last)
                self._effects.apply(store, decisions, messages, [moving], careful=careful)
                if decisions.letters:
                    blocked = self._dead_letters.record(
                        connection, decisions.letters, self._key_fields
                    )
        positions.committed(part, batch.to)
        handling.committed()
        handling.at_hand = ()
        return BatchResult(
            part,
            batch.to,
            len(messages),
            decisions.counts,
            decisions.conflicts,
            decisions.letters,
            decisions.tried,
            blocked,
            decisions.failed,
            batch.ended or (following is not None and not following.batch.messages),
        )
