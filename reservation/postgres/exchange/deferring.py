"""Statements of handlers that wait to be sent together, in one round trip.

A handler that is called for each of a thousand messages executes as many statements, and most need
no look at the answer. So a statement is encoded when it is executed, and sent with those that
follow it. Whatever looks at its answer, or uses the connection in another way, sends it before.
(The idea is that of psycopg's pipeline mode. That sends each statement by itself, and its cursors
do not say how many rows one has changed until that is asked for in another way.)

An error may come later than its statement. Then all that was done since the beginning is taken
back, to be done once more with each statement sent at once.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Any, Self

import psycopg
from psycopg._cursor_base import BaseCursor
from psycopg._queries import PostgresQuery
from psycopg.abc import PQGen
from psycopg.pq import Format
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import Row

from reservation.postgres.exchange.guarded_cursor import GuardedCursor
from reservation.postgres.exchange.results import (
    check_results,
    results_up_to_sync,
    send_up_to_sync,
)

# So many statements, or bytes of their parameters, are sent at a time. The server sends the answers
# together too, and only they are a sign of life, and each may have to wait a second for a lock.
MOST = 50
_MOST_BYTES = 1 << 18

# Seconds in which the answers must have come for twice as many to be sent the next time. The first
# statement is sent alone, and so is the one after a long wait.
_SOON = 0.1

_SAVEPOINT = b"SAVEPOINT reservation_together"
_ROLLBACK = "ROLLBACK TO SAVEPOINT reservation_together"


_Statement = tuple["DeferringCursor[Any]", PostgresQuery, Format]


class TakenBackError(Exception):
    """What was executed together is taken back, because something of it failed."""


class Deferred:
    """The statements that a connection is going to send together.

    Attributes:
        depth: in how many blocks of `Connection.transaction` they are.
    """

    def __init__(self, answered: Callable[[], None], depth: int) -> None:
        """Begin without any; it is reported when answers come."""
        self.depth = depth
        self._answered = answered
        self._statements: list[_Statement] = []
        self._bytes = 0
        self._most = 1
        self._has_begun = False
        self._has_failed = False

    def add(self, cursor: "DeferringCursor[Any]", query: PostgresQuery, form: Format) -> None:
        """Add a statement, whose answer the cursor gets."""
        self._statements.append((cursor, query, form))
        self._bytes += sum(map(len, filter(None, query.params or ())))

    @property
    def is_full(self) -> bool:
        """Whether it is time to send them."""
        return len(self._statements) >= self._most or self._bytes >= _MOST_BYTES

    def sent(self, pgconn: PGconn, *, to_end: bool = False) -> PQGen[None]:
        """Send them, behind a savepoint, and give each cursor its answer; raise the first error.

        At the end nothing is sent if nothing was executed.
        """
        statements, self._statements, self._bytes = self._statements, [], 0
        begins = not self._has_begun
        if not statements and (to_end or not begins):
            return
        self._has_begun, began = True, time.monotonic()
        try:
            pgconn.enter_pipeline_mode()
            if begins:
                pgconn.send_query_params(_SAVEPOINT, None)
            is_own = [False] * begins + list(_put(pgconn, statements))
            yield from send_up_to_sync(pgconn)
            results = yield from results_up_to_sync(pgconn, self._answered)
            pgconn.exit_pipeline_mode()
            check_results(results)
        except BaseException:
            self._has_failed = True
            raise
        finally:
            for cursor, _, _ in statements:
                cursor.awaited = None
        is_soon = time.monotonic() - began < _SOON
        self._most = min(2 * self._most, MOST) if is_soon else 1
        answers = compress(results, is_own)
        for (cursor, _, _), result in zip(statements, answers, strict=True):
            cursor.take(result)

    def check(self) -> None:
        """Raise an error if one of them has failed, whatever became of its own error."""
        if self._has_failed:
            raise psycopg.errors.InFailedSqlTransaction("a statement has failed")

    def take_back(self, connection: psycopg.Connection[Any]) -> bool:
        """Take back what was executed; return whether that was possible."""
        if not self._has_begun:
            return not connection.closed
        try:
            connection.execute(_ROLLBACK)
        except psycopg.Error:
            return False
        return True


def _put(pgconn: PGconn, statements: Sequence[_Statement]) -> Iterator[bool]:
    """Put statements, and yield for each result whether it is the answer to one.

    Those that follow each other and have the same text are parsed once. Their plan is not kept for
    longer, because a table that is being made soon has other plans.
    """
    parsed: tuple[bytes, tuple[int, ...]] | None = None
    for _, query, form in statements:
        text = query.query, query.types
        if text != parsed:
            parsed = text
            pgconn.send_prepare(b"", query.query, param_types=query.types)
            yield False
        pgconn.send_query_prepared(
            b"", query.params, param_formats=query.formats, result_format=form
        )
        yield True


class DeferringCursor(GuardedCursor[Row]):
    """The cursor of a connection that may send statements together.

    Attributes:
        awaited: what the statement waits in whose answer this cursor gets; None if it has that.
    """

    awaited: Deferred | None = None

    # Any, from here on: what psycopg takes.
    def execute(
        self,
        query: Any,
        params: Any = None,
        *,
        prepare: bool | None = None,
        binary: bool | None = None,
    ) -> Self:
        """Execute a statement, or defer it.

        Only without parameters it may be several at once, or end the transaction. Whoever runs a
        block of its own means to catch errors in it, and whoever hears notices is to hear them now.
        """
        connection: Any = self.connection
        deferred = connection.deferred
        if (
            deferred is None
            or not params
            or prepare
            or connection._num_transactions != deferred.depth
            or connection._notice_handlers
            or connection.pgconn.pipeline_status
        ):
            return super().execute(query, params, prepare=prepare, binary=binary)
        with connection.lock:
            for _ in self._start_query(query):
                raise psycopg.InternalError("no transaction is open")
            self._query = self._convert_query(query, params)
            self._last_query = query
            form = self.format if binary is None else Format(binary)
            deferred.add(self, self._query, form)
            self.awaited = deferred
            if deferred.is_full:
                connection.send_deferred()
        return self

    def take(self, result: PGresult) -> None:
        """Take the answer of the statement."""
        self._set_results([result])

    def _settle(self) -> None:
        connection: Any = self.connection
        if self.awaited is not None and self.awaited is connection.deferred:
            with connection.lock:
                connection.send_deferred()

    @property
    def pgresult(self) -> PGresult | None:
        """The answer; psycopg reads nearly all of it here."""
        self._settle()
        result: PGresult | None = _PGRESULT.__get__(self)
        return result

    @pgresult.setter
    def pgresult(self, result: PGresult | None) -> None:
        _PGRESULT.__set__(self, result)

    @property
    def rowcount(self) -> int:
        """How many rows there are, or were changed."""
        self._settle()
        return super().rowcount

    @property
    def statusmessage(self) -> str | None:
        """The tag of the command."""
        self._settle()
        return super().statusmessage

    def set_result(self, index: int) -> Self:
        """Go to an answer."""
        self._settle()
        return super().set_result(index)


_PGRESULT: Any = vars(BaseCursor)["pgresult"]  # a slot
