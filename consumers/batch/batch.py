"""One batch, one transaction: read, decide, write, move the position, commit.

A crash at any point leaves nothing behind, and the batch is read again. Handlers run before
anything is written, so the category locks are held only for the writes.

Messages of two-phase strategies have batches of their own, which take two transactions: the first
stores the states, the second publishes the outputs and moves the position. After a crash between
the two the batch is read again, and its messages are found among the stored versions.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from consumers.batch.batch_size import DEFAULT_BATCH_BYTES, BatchSize
from consumers.batch.effects import BatchEffects
from consumers.batch.letter_transaction import RetryTransaction
from consumers.calls.blame import before, transaction
from consumers.dead_letters.corrections import Corrections, applied
from consumers.dead_letters.failure import Letter
from consumers.dead_letters.letters import DeadLetters
from consumers.decisions.blocking import ALL_OR_NOTHING, FailurePolicy
from consumers.group.positions import NotMovedError, Positions
from consumers.handling.handling import Handling
from consumers.runtime.context import ConsumerContext
from reservation.errors import MessageError
from reservation.idempotence.reserve import ConflictFoundError
from reservation.idempotence.server_keys import Commands, read_commands, server_rules
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.store.client import MessageStore
from reservation.store.partition import Partition
from reservation.store.statements import Statement, lock_categories, read_part, run

_QUERIES = load_queries("consumers.batch")


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
        """Prepare.

        Args:
            context: the consumer; its connection is not in a transaction.
            batch_bytes: how many bytes of data and metadata a batch may have; it ends with the
                message that reaches them.
        """
        self._batch_bytes = batch_bytes
        component = context.component
        snapshots = component.snapshots(context.connection)
        self._context = context
        volatile = component.volatile("initiate") | component.volatile("reserve")
        self._corrections = Corrections(
            component.name, context.category, volatile if context.reserves else {}
        )
        self._handling = Handling(context, snapshots, self._corrections, batch_bytes)
        self._effects = BatchEffects(context, snapshots)
        self._dead_letters = DeadLetters(component.name, context.category)
        subscribed = component.subscribed.get(context.category)
        self._first_position = 0 if subscribed is None else subscribed.first_position
        needs = self._handling.needs
        self._size = BatchSize(needs.own, needs.is_two_phase if needs.two_phase else None)
        self.retry_transaction = RetryTransaction(
            context, self._handling, self._effects, self._dead_letters
        )
        reservations = {
            name: declared
            for name, declared in component.server_keys.items()
            if name not in component.ignored
        }
        self._rules = server_rules(reservations if context.reserves else {})

    def run(
        self,
        positions: Positions,
        limit: int,
        *,
        careful: bool = False,
        policy: FailurePolicy = ALL_OR_NOTHING,
    ) -> BatchResult:
        """Take the category forward by up to ``limit`` messages.

        Args:
            positions: what is held of the category.
            limit: how many messages to take at most.
            careful: whether to hold off other writers before anything is read, rather than only
                while writing, and to look for messages that were handled before. A batch that lost
                a race, or met its own earlier effects, is sure to get through then.
            policy: what becomes of messages that cannot be handled.

        Raises:
            MessageError: a message cannot be handled; nothing of the batch is written.
            ExpectedVersionError, MessageIdConflictError: another writer was first, or a message
                was handled before; run the batch again, carefully.
            PositionLostError: another process has taken over; nothing of the batch is written.
            ForeignPositionError: the position was taken in another log; nothing is written.
        """
        self._handling.order(positions)
        connection = self._context.connection
        try:
            with self._context.spans.batch():
                try:
                    return self._run(positions, limit, careful, policy, at_once=not careful)
                except ConflictFoundError:
                    self._handling.forget()
                    return self._run(positions, limit, careful, policy, at_once=False)
                except NotMovedError:
                    raise positions.lost(connection) from None
        except BaseException:
            self._handling.forget()
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
        part = self._part(positions)
        if part is None:
            return None
        messages, _ = run(self._context.connection, self._reading(part, 1))
        return messages[0] if messages else None

    def _run(
        self,
        positions: Positions,
        limit: int,
        careful: bool,
        policy: FailurePolicy,
        *,
        at_once: bool,
    ) -> BatchResult:
        connection = self._context.connection
        blocked: Collection[str] = ()
        messages: Sequence[StoredMessage] = ()
        key_streams: Sequence[str | None]
        part = self._part(positions)
        if part is None:
            return BatchResult(None, 0)
        size = self._size.limit(limit)
        reading = self._reading(part, size)
        requests = [reading.request]
        if careful:
            requests.insert(0, lock_categories(self._handling.categories).request)
        with transaction(connection, lambda: messages, requests) as answers:
            store = MessageStore(connection)
            messages, key_streams = reading.read(answers[-1].rows)
            ended = part.partitions is None and self._is_end(messages, size)
            to = self._end(part, messages, size)
            if to + 1 < self._first_position:
                to = self._passed(to)
            if to == part.after:
                return BatchResult(part, to)
            # A message that is given up is the only one, and must not be decoded by the component.
            if not policy.given_up and (end := self._size.cut(messages)) < len(messages):
                messages, key_streams = messages[:end], key_streams[:end]
                to, ended = messages[-1].global_position, False
            last = messages[-1].id if messages and messages[-1].global_position == to else None
            corrected = self._corrections.of(connection, positions, messages)
            messages, key_streams = applied(messages, key_streams, corrected)
            decisions = self._handling.plan(
                store, messages, key_streams, corrected, careful=careful, policy=policy
            )
            if (next_ := decisions.ends_before) is not None:
                messages = messages[: before(messages, next_.global_position)]
                if decisions.failed is None:
                    self._size.used(len(messages))
                to, last, ended = messages[-1].global_position, messages[-1].id, False

            def finish() -> Collection[str]:
                if at_once and self._effects.is_one_statement(decisions, messages):
                    moving = positions.advance(connection, part, to, last, or_fail=True)
                    self._effects.commit(decisions, messages, moving)
                    return ()
                moving = positions.advance(connection, part, to, last)
                self._effects.apply(store, decisions, messages, [moving], careful=careful)
                if decisions.letters:
                    return self._dead_letters.record(connection, decisions.letters)
                return ()

            if decisions.pending is None:
                blocked = finish()
        if decisions.pending is not None:  # now that the states are committed
            with transaction(connection, lambda: messages):
                blocked = finish()
        positions.committed(part, to)
        self._handling.at_hand = ()
        return BatchResult(
            part,
            to,
            len(messages),
            decisions.counts,
            decisions.conflicts,
            decisions.letters,
            decisions.tried,
            blocked,
            decisions.failed,
            ended,
        )

    def _part(self, positions: Positions) -> Partition | None:
        """Return what to read, up to where the category ends if it is read in parts.

        What is read after its end was looked at holds all that there is up to there, because the
        messages of a category are committed in the order of their positions.
        """
        part = positions.next()
        if part is None or part.partitions is None:
            return part
        return part.up_to(max(self._head(), part.after))

    def _head(self) -> int:
        """Return the global position of the category's last message."""
        with translated():
            ((head,),) = self._context.connection.execute(
                _QUERIES["category_head"], [self._context.category]
            ).fetchall()
        return int(head)

    def _passed(self, to: int) -> int:
        """Return how far nothing is to be handled, because every handler begins later."""
        return max(to, min(self._head(), self._first_position - 1))

    def _reading(self, part: Partition, limit: int) -> Statement[Commands]:
        """Return what reads a batch, and the stream of each key that the server takes."""
        category = self._context.category
        if part.after + 1 < self._first_position:
            part = replace(part, after=self._first_position - 1)
        if self._rules != "[]":
            return read_commands(category, part, limit, self._rules, self._batch_bytes)
        reading = read_part(category, part, limit, self._batch_bytes)

        def read(rows: Sequence[tuple[Any, ...]]) -> Commands:
            return reading.read(rows), [None] * len(rows)

        return Statement(reading.query, reading.parameters, read, repeated=True)

    def _end(self, part: Partition, messages: Sequence[StoredMessage], limit: int) -> int:
        """Return the position up to which a part was read."""
        if part.until is not None and self._is_end(messages, limit):
            return part.until
        return messages[-1].global_position if messages else part.after

    def _is_end(self, messages: Sequence[StoredMessage], limit: int) -> bool:
        """Return whether there was nothing more to read than these messages.

        That is asked of the characters too: each has four bytes at most, in whichever encoding the
        server has counted them.
        """
        if len(messages) >= limit:
            return False
        characters = sum(
            len(message.data or "") + len(message.metadata_json or "") for message in messages
        )
        return 4 * characters < self._batch_bytes
