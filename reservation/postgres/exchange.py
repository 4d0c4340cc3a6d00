"""Statements that are prepared once and sent together, in one round trip.

A consumer that waits for messages sends few, small statements, and each round trip and each plan
counts. psycopg's own pipeline mode takes longer than the round trips that it saves there; this is
libpq's. Each statement runs after the one before it, and none after one that fails.
"""

import contextlib
import functools
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeGuard

import psycopg
from psycopg import Connection
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from reservation.postgres.arrays import array_cursor, register_arrays

_AS_EXPECTED = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_PLACEHOLDER = re.compile(rb"%(?:\((\w+)\))?s|%%")


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


# The names of the statements that a connection has prepared, by their texts and types.
_Names = dict[tuple[bytes, tuple[int, ...]], bytes]


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
        transformer: what makes parameters and rows; it remembers how for each type.
    """

    # Any: what psycopg makes a connection of.
    def __init__(self, *arguments: Any, **options: Any) -> None:
        """See `Connection`."""
        super().__init__(*arguments, **options)
        self.prepared: _Names = {}
        self.prefix = f"reservation_{secrets.token_hex(4)}"  # a pooler may keep names of others
        self.begun = False
        self.end = End.OPEN
        self.sent: Sent | None = None
        register_arrays(self)
        self.transformer = Transformer(self)

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
    """
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
        if not connection.closed:
            with contextlib.suppress(psycopg.Error):  # of a connection that was lost
                connection.execute("ROLLBACK")
        raise
    if connection.end is not End.COMMITTED:
        connection.execute("COMMIT")


def run_transaction(beginning: "Beginning") -> list[Answer] | None:
    """Run a transaction of which all is sent at once; or take its answers, if it was sent.

    Args:
        beginning: all of it, with the commit.

    Returns:
        The answers; None if the server refused a statement or the commit, and nothing is written.

    Raises:
        psycopg.Error: the connection was lost.
    """
    connection = beginning.connection
    connection.end = End.OPEN
    try:
        return beginning.answers()
    except psycopg.Error as error:
        if error.sqlstate is None or connection.closed:
            raise
    if connection.info.transaction_status is not TransactionStatus.IDLE:
        connection.execute("ROLLBACK")
    return None


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
    sent = [_Sending(connection, request) for request in requests]
    with _in_pipeline(connection):
        results = connection.wait(_exchange(connection, sent, commits=commits))
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
    sent = [_Sending(connection, request) for request in requests]
    later = None if then is None else _Sending(connection, then)
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
        """
        self.connection = connection
        self._requests = [_BEGIN, *requests]
        self._sending = [_Sending(connection, request) for request in self._requests]
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
            results = connection.wait(_exchange(connection, self._sending, commits=commits))
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
        sending: "Sequence[_Sending]",
        later: "_Sending | None",
        *,
        commits: bool = True,
    ) -> None:
        self._connection = connection
        self._requests = requests
        self._commits = commits
        self.was_disturbed = False
        self.later: Answer | None = None
        with _in_pipeline(connection):
            self._new = _put(connection, sending, commits=commits, later=later)
            # All of it: what is missing would keep a transaction open that has taken locks.
            if connection.pgconn.flush():
                connection.wait(_flushed(connection.pgconn))
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
            prepared, results = connection.wait(_taken(connection, self._new))
        before = len(self._requests) + self._commits
        answers = _answers(
            connection, self._requests, (prepared, results[:before]), commits=self._commits
        )
        if results[before:] and results[-1].status in _AS_EXPECTED:
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
    found: "_Results",
    *,
    commits: bool,
) -> list[Answer]:
    """Return the answers of statements from the results of preparing and running them."""
    prepared, results = found
    _check(prepared)
    for request, result in zip(requests, results, strict=False):
        if result.status not in _AS_EXPECTED:
            raise request.failed(error_from_result(result))
    if commits:
        connection.end = End.REFUSED
        _check([results.pop()])
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


class _Sending:
    """A statement as libpq takes it."""

    def __init__(self, connection: KeepingConnection, request: Request) -> None:
        self.query, order = _numbered(request.query)
        if isinstance(request.parameters, Mapping):
            values = [request.parameters[name] for name in order]
        else:
            values = list(request.parameters)
        transformer = connection.transformer
        self.values = transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))
        self.types = transformer.types or ()
        self.formats = transformer.formats
        self.key = self.query, self.types


@functools.lru_cache(maxsize=256)
def _numbered(query: bytes) -> tuple[bytes, list[str]]:
    """Return a query with numbers for its placeholders, and the names of those that have one."""
    order: list[str] = []
    count = 0

    def number(match: re.Match[bytes]) -> bytes:
        nonlocal count
        if match[0] == b"%%":
            return b"%"
        if match[1] is None:
            count += 1
            return b"$%d" % count
        name = match[1].decode()
        if name not in order:
            order.append(name)
        return b"$%d" % (order.index(name) + 1)

    return _PLACEHOLDER.sub(number, query), order


# The results of preparing statements, and of running them.
_Results = tuple[list[PGresult], list[PGresult]]


def _exchange(
    connection: KeepingConnection, sent: Sequence[_Sending], *, commits: bool
) -> PQGen[_Results]:
    """Send statements, and return their results."""
    new = _put(connection, sent, commits=commits)
    return (yield from _taken(connection, new))


def _put(
    connection: KeepingConnection,
    sent: Sequence[_Sending],
    *,
    commits: bool,
    later: _Sending | None = None,
) -> _Names:
    """Begin to send statements in libpq's pipeline mode; return the names of those that are new.

    Those are prepared first, in a transaction of their own where none is open: what is prepared
    stays so after a rollback, and a transaction whose first statement is not its BEGIN has the
    isolation level of the session.
    """
    pgconn, names, prefix = connection.pgconn, connection.prepared, connection.prefix
    every = [*sent, *([] if later is None else [later])]
    new = {one.key: one for one in every if one.key not in names}
    given = {key: f"{prefix}_{n}".encode() for n, key in enumerate(new, len(names))}

    def put(one: _Sending) -> None:
        name = names.get(one.key) or given[one.key]
        pgconn.send_query_prepared(
            name, one.values, param_formats=one.formats, result_format=Format.BINARY
        )

    pgconn.enter_pipeline_mode()
    for key, one in new.items():
        pgconn.send_prepare(given[key], one.query, param_types=one.types)
    if new:
        pgconn.pipeline_sync()
    for one in sent:
        put(one)
    if commits:
        pgconn.send_query_params(b"COMMIT", None)
    if later is not None:
        put(later)
    pgconn.pipeline_sync()
    return given


def _taken(connection: KeepingConnection, new: _Names) -> PQGen[_Results]:
    """Send the rest; return the results of preparing what is new, and of running all."""
    pgconn = connection.pgconn
    yield from _flushed(pgconn)
    prepared = (yield from _results(pgconn)) if new else []
    results = yield from _results(pgconn)
    pgconn.exit_pipeline_mode()
    for key, result in zip(new, prepared, strict=False):
        if result.status == ExecStatus.COMMAND_OK:
            connection.prepared[key] = new[key]
    return prepared, results


def _flushed(pgconn: PGconn) -> PQGen[None]:
    """Send everything, and take in meanwhile what the server sends."""
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()


def _results(pgconn: PGconn) -> PQGen[list[PGresult]]:
    """Take the results of what was sent up to a synchronization.

    Raises:
        Error: the connection was lost; what the server said last, if it said why.
    """
    results: list[PGresult] = []
    while True:
        while pgconn.is_busy():
            yield Wait.R
            try:
                pgconn.consume_input()
            except psycopg.OperationalError:
                _check(results)
                raise
        result = pgconn.get_result()
        if result is None:  # between those of two statements
            if pgconn.status == ConnStatus.BAD:
                _check(results)
                raise psycopg.OperationalError("the connection is lost")
        elif result.status == ExecStatus.PIPELINE_SYNC:
            return results
        else:
            results.append(result)


def _check(results: Sequence[PGresult]) -> None:
    """Raise the first error among results."""
    for result in results:
        if result.status not in _AS_EXPECTED:
            raise error_from_result(result)


def _answer(connection: KeepingConnection, result: PGresult) -> Answer:
    if result.status == ExecStatus.COMMAND_OK:
        return Answer([], result.command_tuples or 0)
    transformer = connection.transformer
    transformer.set_pgresult(result)
    return Answer(transformer.load_rows(0, result.ntuples, tuple), result.ntuples)
