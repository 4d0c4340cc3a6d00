"""Statements that are prepared once and sent together, in one round trip.

A consumer that waits for messages sends few, small statements, and each round trip and each plan
counts. psycopg's own pipeline mode takes longer than the round trips that it saves there; this is
libpq's (`reservation.postgres.pipeline`). Each statement runs after the one before it, and none
after one that fails.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeGuard

import psycopg
from psycopg import Connection
from psycopg.adapt import Transformer
from psycopg.errors import RaiseException, error_from_result
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from reservation.postgres.arrays import array_cursor, register_arrays
from reservation.postgres.connection import check_encoding
from reservation.postgres.pipeline import (
    AS_EXPECTED,
    Names,
    Results,
    Sending,
    check_results,
    flushed,
    put,
    put_and_taken,
    taken,
)
from reservation.postgres.sqlstates import Fault, fault_of


class Answer(NamedTuple):
    """What the server answered.

    Attributes:
        rows: the rows; none where the statement returns none.
        affected: how many rows there are, or were changed.
    """

    rows: list[tuple[Any, ...]]
    affected: int


def _accept(answer: Answer) -> None:
    """Accept any answer."""
    del answer


def _as_it_is(error: psycopg.Error) -> Exception:
    """Return an error as it is."""
    return error


# Any: parameters are what PostgreSQL has types for.
@dataclass(frozen=True, slots=True)
class Request:
    """A statement to send.

    Attributes:
        query: one statement with placeholders, whose plan may be kept: it does not depend on how
            large the log is, as the call of a function does not.
        parameters: their values.
        check: called with the answer, to raise an error if it is not as it must be.
        failed: returns what to raise for an error of this statement.
    """

    query: bytes
    parameters: Sequence[Any] | Mapping[str, Any]
    check: Callable[[Answer], None] = _accept
    failed: Callable[[psycopg.Error], Exception] = _as_it_is


class End(Enum):
    """What became of the last transaction of `transaction_of`, once `exchange` was to commit it."""

    OPEN = "open"
    COMMITTED = "committed"
    REFUSED = "refused"  # by the commit itself, and no statement before it


class KeepingConnection(Connection[Any]):
    """A connection that prepares what `exchange` sends, and sends it together.

    Its session must be its own, so it is not for a pooler.

    Attributes:
        prepared: the names of what is prepared.
        prefix: what they begin with.
        begun: whether the block of a `transaction_of` runs, whose transaction is open.
        end: what became of its transaction within the block.
        sent: what was sent, as long as its answers are not taken.
    """

    # Any: what psycopg makes a connection of.
    def __init__(self, *arguments: Any, **options: Any) -> None:
        """See `Connection`."""
        super().__init__(*arguments, **options)
        self.prepared: Names = {}
        self.prefix = f"reservation_{secrets.token_hex(4)}"  # a pooler may keep names of others
        self.begun = False
        self.end = End.OPEN
        self.sent: Sent | None = None
        register_arrays(self)

    # Any: what psycopg's generators give.
    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Wait for what psycopg has sent; refused while the answers of `Sent` are to be taken.

        Raises:
            ProgrammingError: they are.
        """
        if self.sent is not None:
            self.sent.was_disturbed = True
            raise psycopg.ProgrammingError("the connection is in use for what was sent before")
        return super().wait(*arguments, **options)

    def commit(self) -> None:
        """Commit; refused in `transaction_of`, whose end that is.

        Raises:
            ProgrammingError: the transaction is not the caller's.
        """
        self._refuse("commit")
        super().commit()

    def rollback(self) -> None:
        """Roll back; refused in `transaction_of`, whose end that is.

        Raises:
            ProgrammingError: the transaction is not the caller's.
        """
        self._refuse("rollback")
        super().rollback()

    def _refuse(self, what: str) -> None:
        if self.begun:
            raise psycopg.ProgrammingError(
                f"{what}() is forbidden within the transaction of somebody else"
            )


def keeps_statements(connection: Connection[Any]) -> TypeGuard[KeepingConnection]:
    """Return whether a connection prepares and sends as `KeepingConnection` does, at this moment.

    In a pipeline of psycopg's it does not.
    """
    in_pipeline = connection.pgconn.pipeline_status != PipelineStatus.OFF
    return isinstance(connection, KeepingConnection) and not in_pipeline


@contextlib.contextmanager
def transaction_of(
    connection: Connection[Any], requests: "Sequence[Request] | Beginning" = ()
) -> Iterator[list[Answer]]:
    """Run a block in a transaction, whose first statements are sent with its begin.

    Args:
        connection: in autocommit, and in no transaction.
        requests: the first statements, whose answers are given to the block; or the beginning with
            them, which may have been sent.

    Raises:
        psycopg.Error: a statement failed, or the commit did.
        StoreError: a former transaction has set the connection to another encoding than UTF-8.
    """
    check_encoding(connection)
    if not isinstance(connection, KeepingConnection):
        assert not isinstance(requests, Beginning)  # noqa: S101  it has such a connection
        with connection.transaction():
            yield exchange(connection, requests)
        return
    connection.begun, connection.end = True, End.OPEN
    try:
        try:
            if isinstance(requests, Beginning):
                yield requests.answers()
            else:
                yield exchange(connection, [_BEGIN, *requests])[1:]
        finally:
            connection.begun = False
    except BaseException:
        _roll_back(connection)
        raise
    if connection.end is not End.COMMITTED:
        connection.execute("COMMIT")


def run_transaction(beginning: "Beginning") -> list[Answer] | None:
    """Run a transaction of which all is sent at once; or take its answers, if it was sent.

    Args:
        beginning: all of it, with the commit.

    Returns:
        The answers; None if the server refused what the statements carry, and nothing is written.

    Raises:
        psycopg.Error: another error, after which nothing is written either, unless the connection
            was lost.
    """
    connection = beginning.connection
    connection.end = End.OPEN
    try:
        return beginning.answers()
    except psycopg.Error as error:
        if not isinstance(error, RaiseException) and fault_of(error) is not Fault.MESSAGE:
            raise
    finally:
        _roll_back(connection)
    return None


def _roll_back(connection: KeepingConnection) -> None:
    """End a transaction that has failed; nothing without one."""
    if connection.closed or connection.info.transaction_status is TransactionStatus.IDLE:
        return
    with contextlib.suppress(psycopg.Error):  # of a connection that was lost
        connection.execute("ROLLBACK")


def was_refused(connection: Connection[Any]) -> bool:
    """Return whether the commit that `exchange` sent was refused, and no statement before it."""
    return isinstance(connection, KeepingConnection) and connection.end is End.REFUSED


def awaits_answers(connection: Connection[Any]) -> bool:
    """Return whether answers are to be taken of what was sent on a connection."""
    return isinstance(connection, KeepingConnection) and connection.sent is not None


_BEGIN = Request(b"BEGIN ISOLATION LEVEL READ COMMITTED", ())


def exchange(
    connection: Connection[Any], requests: Sequence[Request], *, commits: bool = False
) -> list[Answer]:
    """Send statements, and return their answers; one after the other where none are kept.

    Args:
        connection: in a transaction, unless there is only one statement.
        requests: the statements, in their order.
        commits: whether to commit the transaction of `transaction_of` with them, if none fails.
            What the transaction must not be committed without has to be a statement that fails:
            answers are checked too late. Where statements are not sent together, the end of the
            block commits.

    Raises:
        psycopg.Error: a statement failed, and its request says nothing else; those after it were
            not run.
    """
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

    Args:
        connection: in such a transaction.
        requests: the statements, in their order; as for `exchange` with ``commits``.
        then: what is asked after the commit, and may fail; None for nothing.
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
        """Prepare; nothing is sent yet.

        Args:
            connection: in autocommit, and in no transaction.
            requests: the statements, in their order.
            commits: whether the transaction is committed with them, if none fails.

        Raises:
            StoreError: the connection is set to another encoding than UTF-8.
        """
        check_encoding(connection)
        self.connection = connection
        self._requests = [_BEGIN, *requests]
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
        """Send the statements, unless that was done, and return their answers.

        Raises:
            psycopg.Error: a statement failed, or the commit did.
        """
        sent, self._sent = self._sent, None
        if sent is not None:
            return sent.answers()[1:]
        connection, commits = self.connection, self._commits
        with _in_pipeline(connection):
            results = connection.wait(put_and_taken(connection, self._sending, commits=commits))
        return _answers(connection, self._requests, results, commits=commits)[1:]


class Sent:
    """Statements that were sent, and whose answers are to be taken.

    Attributes:
        was_disturbed: whether somebody tried to use the connection meanwhile.
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
        self.was_disturbed = False
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
        """Wait for the answers, and return those of the statements before the commit.

        Raises:
            psycopg.Error: a statement failed, and its request says nothing else; those after it
                were not run.
        """
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
