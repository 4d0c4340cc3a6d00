"""Writing what was decided on messages, in the current transaction."""

from collections.abc import Callable, Collection, Sequence
from functools import partial

import psycopg

from consumers.batch.copying import Copying
from consumers.calls.blame import blamed
from consumers.effects.effects import Effects
from consumers.handling.redelivery import refuse_taken_ids
from consumers.runtime.context import ConsumerContext
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
from reservation.messages.message import StoredMessage, printable
from reservation.postgres.arrays import TextArray, UuidArray
from reservation.postgres.error_translation import translation
from reservation.postgres.exchange.exchange import exchange
from reservation.postgres.exchange.request import Request
from reservation.postgres.queries import load_queries
from reservation.postgres.sqlstates import REWRITTEN, is_condition
from reservation.read_models.schemas import still_entered
from reservation.store.client import MessageStore
from reservation.store.statements import lock_categories
from reservation.store.writing.batch import WriteBatch, portions
from reservation.store.writing.scheduling import schedule_rows
from reservation.store.writing.write import Row

_QUERIES = load_queries("consumers.batch")


class EffectsWriter:
    """Writes the effects of one consumer's messages, for a batch or for letters."""

    def __init__(self, context: ConsumerContext, snapshots: Snapshots | None) -> None:
        self._context = context
        self._snapshots = snapshots
        self._copying = Copying(context)

    def write(
        self,
        store: MessageStore,
        effects: Effects,
        messages: Sequence[StoredMessage],
        first: Sequence[Request] = (),
        last: Callable[[], Sequence[Request]] = tuple,
        *,
        recheck: bool,
        commits: bool = True,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Write what was decided between other statements, and commit, in one round trip.

        Commands that are reserved or initiate again take another, because what became of them
        decides on what is recorded.
        """
        if recheck:
            refuse_taken_ids(store, effects, messages)
        connection = self._context.connection
        try:
            with blamed(messages):
                requests = [*first, *self._locks(effects, recheck=recheck)]
                requests = self._with_writes(effects, requests)
                if effects.reservations or effects.reissued:
                    self._copying.run(effects, requests)
                    requests = []
                requests = [*requests, *self._records(effects), *last(), *self._checks()]
                exchange(connection, requests, commits=commits, meanwhile=meanwhile)
        except (ExpectedVersionError, MessageIdConflictError) as error:
            if recheck:
                _blame(error, effects, messages)
            raise

    def _checks(self) -> list[Request]:
        """Return what makes sure that handlers left the session as the next ones need it."""
        model = declarations(self._context.component).model
        return [] if model is None else [still_entered(model.schema)]

    def _locks(self, effects: Effects, *, recheck: bool) -> list[Request]:
        """Return the requests for the locks that are needed before the first write.

        Messages for one category are written by statements that take its lock themselves.
        """
        name = self._context.component.name
        kept = [category for once in effects.checks for category in once.categories(name)]
        categories = [*effects.categories, *kept]
        needs_lock = recheck or effects.further or kept
        if not categories or (len(categories) == 1 and not needs_lock):
            return []
        lock = lock_categories(categories)
        return [Request(lock.query, lock.parameters, failed=translation)]

    def _with_writes(self, effects: Effects, requests: list[Request]) -> list[Request]:
        """Add the requests that write messages; all but the last portion are sent already."""
        if effects.further:
            ids = UuidArray([row.id for row in effects.further])
            names = TextArray([row.stream_name for row in effects.further])
            failed = partial(_not_written, effects.further, ())
            requests = [
                *requests,
                Request(_QUERIES["check_unwritten"], [ids, names], failed=failed),
            ]
        for n, rows in enumerate(portions(effects.writes)):
            if n:
                exchange(self._context.connection, requests)
                requests = []
            writing = WriteBatch.encoded(rows).statement_or_fail()
            failed = partial(_not_written, rows, writing.expects)
            requests = [*requests, Request(writing.query, writing.parameters, failed=failed)]
        if effects.scheduled:
            scheduling = schedule_rows(effects.scheduled)
            requests = [
                *requests,
                Request(
                    scheduling.query,
                    scheduling.parameters,
                    lambda answer: self._context.schedules(scheduling.read(answer.rows)),
                    translation,
                ),
            ]
        return requests

    def _records(self, effects: Effects) -> list[Request]:
        """Return the requests that store what strategies, snapshots and subscriptions need."""
        context = self._context
        requests = [request for check in effects.checks.values() for request in check.record()]
        if self._snapshots is not None:
            writing, refused = self._snapshots.writing(effects.entities)
            requests += writing
            for stream_name in refused:
                context.log.warning("snapshot_impossible", stream_name=printable(stream_name))
        if effects.passes:
            name, category = context.component.name, context.category
            requests.append(record_passes(name, category, effects.passes))
        return requests


def _blame(
    error: ExpectedVersionError | MessageIdConflictError,
    effects: Effects,
    messages: Sequence[StoredMessage],
) -> None:
    """Raise an error that another attempt cannot avoid as a fault of the messages.

    Under the locks no other writer that takes them was first. Some writers take none, so it is not
    a fault of the handler if an entity's stream has moved since it was read.
    """
    of = str(messages[0]) if len(messages) == 1 else f"{len(messages)} messages from {messages[0]}"
    if isinstance(error, MessageIdConflictError):
        raise MessageError(f"Cannot write the effects of {of}: {error}") from error
    if effects.conditional:
        raise HandlerError(
            f"The handler of {of} wrote with an expected version that is not met: {error}"
        ) from error


def _not_written(rows: Sequence[Row], expects: Collection[str], error: psycopg.Error) -> StoreError:
    """Return the error of a refused batch write."""
    if not is_condition(error, REWRITTEN):
        return translation(error, expects)
    stream = rows[0].stream_name
    what = f"The event {rows[0].id} in {stream}"
    if len(rows) > 1:
        what = f"One of {len(rows)} events, the first in {stream},"
    return MessageIdConflictError(f"{what} was written before")
