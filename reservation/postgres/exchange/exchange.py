"""Send statements together, and take their answers at once or later.

Each statement runs after the one before it, and none after one that fails.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, PipelineStatus
from psycopg.pq.abc import PGresult

from reservation.postgres.arrays import array_cursor
from reservation.postgres.connection import check_encoding
from reservation.postgres.exchange.keeping_connection import (
    End,
    KeepingConnection,
    Unanswered,
    keeps_statements,
)
from reservation.postgres.exchange.pipeline import (
    AS_EXPECTED,
    Results,
    Sending,
    check_results,
    flushed,
    put,
    put_and_taken,
    taken,
)
from reservation.postgres.exchange.request import Answer, Request

BEGIN = Request(b"BEGIN ISOLATION LEVEL READ COMMITTED", ())


def exchange(
    connection: Connection[Any], requests: Sequence[Request], *, commits: bool = False
) -> list[Answer]:
    """Send statements, and return their answers; one after the other where none are kept."""
    if not keeps_statements(connection):
        answers = []
        for request in requests:
            answers.append(_execute(connection, request))
            request.check(answers[-1])
        return answers
    commits &= connection.begun
    sent = [Sending(connection, request) for request in requests]
    with _in_pipeline(connection):
        results = connection.wait(put_and_taken(connection, sent, commits=commits))
    return _answers(connection, requests, results, commits=commits)


def send(
    connection: KeepingConnection, requests: Sequence[Request], then: Request | None = None
) -> "Sent":
    """Send statements and the commit of the transaction of `transaction_of`, without waiting.

    Until the answers are taken the connection can do nothing else.
    """
    sent = [Sending(connection, request) for request in requests]
    later = None if then is None else Sending(connection, then)
    return Sent(connection, requests, sent, later)


class Beginning:
    """The first statements of a transaction, with its begin, ready to be sent; or all of them.

    Attributes:
        connection: in no transaction.
        is_sent: whether they were sent, and their answers are to be taken.
    """

    def __init__(
        self, connection: KeepingConnection, requests: Sequence[Request], *, commits: bool = False
    ) -> None:
        check_encoding(connection)
        self.connection = connection
        self._requests = [BEGIN, *requests]
        self._sending = [Sending(connection, request) for request in self._requests]
        self._commits = commits
        self._sent: Sent | None = None

    @property
    def is_sent(self) -> bool:
        """Whether they were sent, and their answers are to be taken."""
        return self._sent is not None

    def send(self) -> None:
        """Send them without waiting; the connection can do nothing else until `answers`."""
        self._sent = Sent(
            self.connection, self._requests, self._sending, None, commits=self._commits
        )

    def answers(self) -> list[Answer]:
        """Send the statements, unless that was done, and return their answers."""
        sent, self._sent = self._sent, None
        if sent is not None:
            return sent.answers()[1:]
        connection, commits = self.connection, self._commits
        with _in_pipeline(connection):
            results = connection.wait(put_and_taken(connection, self._sending, commits=commits))
        return _answers(connection, self._requests, results, commits=commits)[1:]


class Sent(Unanswered):
    """Statements that were sent, and whose answers are to be taken.

    Attributes:
        later: the answer of what was asked after the commit, once the others are taken; None if
            nothing was asked, or it failed.
    """

    def __init__(
        self,
        connection: KeepingConnection,
        requests: Sequence[Request],
        sending: Sequence[Sending],
        later: Sending | None,
        *,
        commits: bool = True,
    ) -> None:
        self._connection = connection
        self._requests = requests
        self._commits = commits
        super().__init__()
        self.later: Answer | None = None
        with _in_pipeline(connection):
            self._new = put(connection, sending, commits=commits, later=later)
            # All of it: what is missing would keep a transaction open that has taken locks.
            if connection.pgconn.flush():
                connection.wait(flushed(connection.pgconn))
        connection.sent = self

    def receive(self) -> None:
        """Take in what the server has sent so far, so that it need not wait to send the rest."""
        with contextlib.suppress(psycopg.OperationalError):  # raised when answers are taken
            self._connection.pgconn.consume_input()

    def answers(self) -> list[Answer]:
        """Wait for the answers, and return those of the statements before the commit."""
        connection = self._connection
        connection.sent = None
        with _in_pipeline(connection):
            prepared, results = connection.wait(taken(connection, self._new))
        before = len(self._requests) + self._commits
        answers = _answers(
            connection, self._requests, (prepared, results[:before]), commits=self._commits
        )
        if results[before:] and results[-1].status in AS_EXPECTED:
            self.later = _answer(connection, results[-1])
        return answers


@contextlib.contextmanager
def _in_pipeline(connection: KeepingConnection) -> Iterator[None]:
    """Run a block that uses libpq's pipeline; close the connection if it raises within."""
    with connection.lock:
        try:
            yield
        except BaseException:
            if connection.pgconn.pipeline_status != PipelineStatus.OFF:
                connection.close()
            raise


def _answers(
    connection: KeepingConnection,
    requests: Sequence[Request],
    found: Results,
    *,
    commits: bool,
) -> list[Answer]:
    """Return the answers of statements from the results of preparing and running them."""
    prepared, results = found
    check_results(prepared)
    for request, result in zip(requests, results, strict=False):
        if result.status not in AS_EXPECTED:
            raise request.failed(error_from_result(result))
    if commits:
        connection.end = End.REFUSED
        check_results([results.pop()])
        connection.end = End.COMMITTED
    answers = [_answer(connection, result) for result in results]
    for request, answer in zip(requests, answers, strict=True):
        request.check(answer)
    return answers


def _execute(connection: Connection[Any], request: Request) -> Answer:
    cursor = array_cursor(connection)
    failure: Exception | None = None
    try:
        cursor.execute(request.query, request.parameters, prepare=False, binary=True)
    except psycopg.Error as error:
        failure = request.failed(error)
    if failure is not None:
        raise failure
    return Answer(cursor.fetchall() if cursor.description else [], cursor.rowcount)


def _answer(connection: KeepingConnection, result: PGresult) -> Answer:
    if result.status == ExecStatus.COMMAND_OK:
        return Answer([], result.command_tuples or 0)
    transformer = Transformer(connection)
    transformer.set_pgresult(result)
    return Answer(transformer.load_rows(0, result.ntuples, tuple), result.ntuples)
