"""Send statements together, and take their answers.

Each statement runs after the one before it, and none after one that fails.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, PipelineStatus
from psycopg.pq.abc import PGresult

from reservation.postgres.arrays import ArrayCursor
from reservation.postgres.exchange.keeping_connection import (
    End,
    KeepingConnection,
    keeps_statements,
)
from reservation.postgres.exchange.pipeline import (
    EncodedStatement,
    Results,
    put,
    put_and_taken,
    taken,
)
from reservation.postgres.exchange.request import Answer, Request
from reservation.postgres.exchange.results import AS_EXPECTED, check_results

BEGIN = Request(b"BEGIN ISOLATION LEVEL READ COMMITTED", ())


def exchange(
    connection: Connection[Any],
    requests: Sequence[Request],
    *,
    commits: bool = False,
    meanwhile: Callable[[], None] | None = None,
) -> list[Answer]:
    """Send statements, and return their answers; one after the other where none are kept.

    What is called meanwhile, while the server works, has no use of the connection.
    """
    if not keeps_statements(connection):
        answers = []
        for request in requests:
            answers.append(_execute(connection, request))
            request.check(answers[-1])
        if meanwhile is not None:
            meanwhile()
        return answers
    commits &= connection.begun
    sent = [EncodedStatement(connection, request) for request in requests]
    with _in_pipeline(connection):
        if meanwhile is None:
            results = connection.wait(put_and_taken(connection, sent, commits=commits))
        else:
            new = connection.wait(put(connection, sent, commits=commits))
            meanwhile()
            results = connection.wait(taken(connection, new))
    return _answers(connection, requests, results, commits=commits)


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
    cursor = ArrayCursor(connection)
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
