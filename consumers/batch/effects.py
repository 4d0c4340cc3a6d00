"""Writing what was decided on messages, in the transaction at hand."""

from collections.abc import Callable, Collection, Sequence
from functools import partial

import psycopg

from consumers.batch.comparison import Comparison
from consumers.calls.blame import blamed
from consumers.decisions.decisions import Decisions
from consumers.handling.redelivery import further_before, refuse_taken_ids
from consumers.runtime.context import ConsumerContext
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.entity.snapshots import Snapshots
from reservation.errors import (
    ExpectedVersionError,
    HandlerError,
    MessageError,
    MessageIdConflictError,
    StoreError,
)
from reservation.idempotence.passes import record_passes
from reservation.idempotence.reserve import (
    ReserveOutcome,
    compare_initiations,
    first_initiated,
    first_reserved,
    reserve,
)
from reservation.messages.message import StoredMessage, printable
from reservation.postgres.connection import check_encoding
from reservation.postgres.error_translation import translated, translation
from reservation.postgres.exchange.exchange import Sent, exchange, send
from reservation.postgres.exchange.keeping_connection import keeps_statements
from reservation.postgres.exchange.request import Answer, Request
from reservation.store.client import MessageStore
from reservation.store.writing.batch import WriteBatch, portions
from reservation.store.writing.write import Row


class BatchEffects:
    """What writes the effects of the messages of one consumer, for a batch or for letters."""

    def __init__(self, context: ConsumerContext, snapshots: Snapshots | None) -> None:
        self._context = context
        self._snapshots = snapshots
        self._comparison = Comparison(context)

    def is_one_statement(self, decisions: Decisions) -> bool:
        """Return whether one statement writes all that was decided, so that `commit` can."""
        others = (
            decisions.further,
            decisions.scheduled,
            decisions.reissued,
            decisions.passes,
            decisions.checks,
            decisions.letters,
            decisions.writes and decisions.reservations,
        )
        return (
            not any(others)
            and self._snapshots is None
            and self._context.spans.tracing is None
            and keeps_statements(self._context.connection)
            and len(decisions.categories) <= 1
            and all(row.expected_version is not None for row in decisions.writes)
            and len(list(portions(decisions.writes))) <= 1
        )

    def commit(
        self,
        decisions: Decisions,
        messages: Sequence[StoredMessage],
        moving: Request,
        meanwhile: Callable[[Sent], None] | None = None,
        then: Request | None = None,
    ) -> Answer | None:
        """Write what was decided and commit, in one round trip."""
        connection, requests = self._context.connection, [moving]
        with blamed(messages):
            if decisions.reservations:
                self._reserve(decisions, requests, commits=True)
                return None
            if decisions.writes:
                check_encoding(connection)
                writing = WriteBatch.encoded(decisions.writes).statement_or_fail()
                failed = partial(_not_written, decisions.writes, writing.expects)
                requests.append(Request(writing.query, writing.parameters, failed=failed))
            if meanwhile is None or not keeps_statements(connection):
                exchange(connection, requests, commits=True)
                return None
            sent = send(connection, requests, then)
            try:
                meanwhile(sent)
            finally:
                sent.answers()
            return sent.later

    def apply(
        self,
        store: MessageStore,
        decisions: Decisions,
        messages: Sequence[StoredMessage],
        before: Sequence[Request] = (),
        *,
        careful: bool,
    ) -> None:
        """Write what was decided, under the locks of its categories."""
        before = self._lock(store, decisions, before, careful=careful)
        if careful:
            refuse_taken_ids(store, decisions, messages)
        try:
            with blamed(messages):
                self._write(store, decisions, before)
                self._remember(decisions)
                self._record_passes(decisions)
        except (ExpectedVersionError, MessageIdConflictError) as error:
            if careful:
                _blame(error, decisions, messages)
            raise

    def _lock(
        self,
        store: MessageStore,
        decisions: Decisions,
        before: Sequence[Request],
        *,
        careful: bool,
    ) -> Sequence[Request]:
        """Take the locks that are needed before the first statement that writes.

        Messages for one category are written by statements that take its lock themselves.
        """
        name = self._context.component.name
        kept = [category for once in decisions.checks for category in once.categories(name)]
        categories = [*decisions.categories, *kept]
        alone = careful or decisions.further or kept
        if len(categories) == 1 and not alone:
            return before
        if before:
            with translated():
                exchange(self._context.connection, before)
        if categories:
            store.lock_categories(categories)
        return ()

    def _write(self, store: MessageStore, decisions: Decisions, before: Sequence[Request]) -> None:
        for write_id in further_before(store, decisions):
            raise MessageIdConflictError(f"The message {write_id} was written before")
        if decisions.writes:
            positions = store.write_encoded(decisions.writes, before)
            _refuse_redelivery(decisions.writes, positions)
            before = ()
        if decisions.scheduled:
            self._context.schedules(store.schedule_encoded(decisions.scheduled))
        commands = [command for command, _ in decisions.reservations]
        context = self._context
        with context.spans.reserving(
            context.connection, context.component.name, commands, decisions.counts
        ):
            self._reserve(decisions, before)
        self._compare_initiations(decisions)

    def _reserve(
        self, decisions: Decisions, before: Sequence[Request], *, commits: bool = False
    ) -> None:
        """Reserve commands; what the server calls conflicts is compared by what it means."""
        connection, component = self._context.connection, self._context.component
        commands = [(command.global_position, name) for command, name in decisions.reservations]
        former = _former(decisions)
        corrected = _corrected(decisions, decisions.reservations)
        volatile = declarations(component).ignoring(Role.RESERVE)
        outcomes = reserve(
            connection, commands, volatile, former, corrected, before, commits=commits
        )
        conflicts = _conflicts(outcomes)
        pairs = first_reserved(
            connection,
            [commands[n] for n in conflicts],
            None if former is None else [former[n] for n in conflicts],
        )
        found = {conflicts[pair.ordinal]: pair for pair in pairs}
        for n, (command, name) in enumerate(decisions.reservations):
            outcome, pair = outcomes[n], found.get(n)
            if pair is not None:
                name = pair.first.stream_name
                outcome = self._comparison.outcome(pair, decisions.corrected)
            decisions.add_outcome(command, name, outcome)

    def _compare_initiations(self, decisions: Decisions) -> None:
        """Compare commands that found their entity's stream started; see `_reserve`."""
        connection, component = self._context.connection, self._context.component
        commands = [(command.global_position, name) for command, name in decisions.reissued]
        corrected = _corrected(decisions, decisions.reissued)
        outcomes = compare_initiations(
            connection, commands, declarations(component).ignoring(Role.INITIATE), corrected
        )
        conflicts = _conflicts(outcomes)
        pairs = first_initiated(connection, [commands[n] for n in conflicts])
        found = {conflicts[pair.ordinal]: pair for pair in pairs}
        for n, (command, name) in enumerate(decisions.reissued):
            outcome, pair = outcomes[n], found.get(n)
            if pair is not None:
                outcome = self._comparison.outcome(pair, decisions.corrected)
            decisions.add_outcome(command, name, outcome)

    def _record_passes(self, decisions: Decisions) -> None:
        """Record the messages of a subscribed category that no event follows from."""
        context = self._context
        record_passes(
            context.connection, context.component.name, context.category, decisions.passes
        )

    def _remember(self, decisions: Decisions) -> None:
        """Store what strategies and snapshots need, in the transaction of the effects."""
        for check in decisions.checks.values():
            check.record()
        if self._snapshots is not None:
            for stream_name in self._snapshots.write(decisions.entities):
                self._context.log.warning("snapshot_impossible", stream_name=printable(stream_name))


def _conflicts(outcomes: Sequence[ReserveOutcome]) -> list[int]:
    """Return which of the commands are in conflict for the server, by their ordinals."""
    return [n for n, outcome in enumerate(outcomes) if outcome is ReserveOutcome.CONFLICT]


def _former(decisions: Decisions) -> list[str | None] | None:
    """Return the former stream of each command to be reserved; None if there is none."""
    if not decisions.former_streams:
        return None
    return [
        decisions.former_streams.get(command.global_position)
        for command, _ in decisions.reservations
    ]


def _corrected(
    decisions: Decisions, commands: Sequence[tuple[StoredMessage, str]]
) -> list[str | None] | None:
    """Return the data to which each command has been corrected; None if none has been."""
    if not decisions.corrected:
        return None
    return [decisions.corrected.get(command.global_position) for command, _ in commands]


def _blame(
    error: ExpectedVersionError | MessageIdConflictError,
    decisions: Decisions,
    messages: Sequence[StoredMessage],
) -> None:
    """Raise an error that another attempt cannot avoid as a fault of the messages.

    Under the locks no other writer that takes them was first. There are writers that take none, so
    an entity's stream that has moved since it was read is not a fault of the handler.
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


def _not_written(rows: Sequence[Row], expects: Collection[str], error: psycopg.Error) -> StoreError:
    """Return the error for rows of which one was written before, or that cannot be written."""
    if not isinstance(error, psycopg.errors.DivisionByZero):
        return translation(error, expects)
    of = f"The event {rows[0].id}" if len(rows) == 1 else f"One of {len(rows)} events"
    return MessageIdConflictError(f"{of}, first in {rows[0].stream_name}, was written before")


def _refuse_redelivery(rows: Sequence[Row], positions: Sequence[int]) -> None:
    """Make sure that every event is where the decisions took it to be.

    An event that was stored before is skipped by the store. What was decided after it was decided
    on an entity to which it was applied twice.
    """
    for row, position in zip(rows, positions, strict=True):
        if row.expected_version is not None and position != row.expected_version + 1:
            raise MessageIdConflictError(
                f"The event {row.id} in {row.stream_name} was written before, at {position}"
            )
