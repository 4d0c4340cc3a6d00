"""Statements that a consumer's connection prepares once and sends together.

It goes in by the module itself: where a statement, its commit or its connection fails is chosen
here one by one, which no consumer can be brought to.
"""

import contextlib

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from reservation.errors import DatabaseUnavailableError
from reservation.postgres.error_translation import translated
from reservation.postgres.exchange.exchange import exchange
from reservation.postgres.exchange.keeping_connection import KeepingConnection
from reservation.postgres.exchange.request import Request
from reservation.postgres.exchange.transaction import run_transaction, transaction_of, was_refused
from tests.apps.bank import session

PREPARED = "SELECT statement FROM pg_prepared_statements"


@pytest.fixture
def keeping(database_url):
    """Give a connection as consumers have it."""
    with session(database_url) as opened:
        yield opened.connection


@pytest.fixture(params=["keeping", "plain"])
def either(request, database_url):
    """Give such a connection, and one of psycopg's own."""
    kind = KeepingConnection if request.param == "keeping" else psycopg.Connection
    with kind.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE kept (n integer PRIMARY KEY)")
        yield connection


def kept(connection):
    return sorted(n for (n,) in connection.execute("SELECT n FROM kept").fetchall())


def keep(n):
    return Request(b"INSERT INTO kept VALUES (%s)", [n])


def test_each_statement_gets_its_answer(either):
    """Each statement gets its answer, with its rows, or how many rows it changed."""
    with either.transaction():
        answers = exchange(
            either,
            [
                Request(b"SELECT %(a)s::text || %(b)s, %(a)s::text", {"b": "%s", "a": "x"}),
                keep(1),
                Request(b"INSERT INTO kept SELECT generate_series(2, 4)", ()),
                Request(b"SELECT n, NULL FROM kept WHERE n %% 2 = %s ORDER BY n", [0]),
                Request(b"UPDATE kept SET n = -n WHERE n > %s", [2]),
            ],
        )
    assert [answer.rows for answer in answers] == [
        [("x%s", "x")],
        [],
        [],
        [(2, None), (4, None)],
        [],
    ]
    assert [answer.affected for answer in answers] == [1, 1, 3, 2, 2]


def test_a_transaction_is_read_committed_whatever_the_default_is(keeping):
    """Preparing comes before the transaction, whose level could not be set after it."""
    keeping.execute("SET default_transaction_isolation = serializable")
    level = Request(b"SELECT current_setting('transaction_isolation')", ())
    for _ in range(2):  # before and after the statement is prepared
        with transaction_of(keeping, [level]) as answers:
            assert answers[0].rows == [("read committed",)]


def test_none_runs_after_one_that_fails(either):
    """A statement that fails raises its error, and those after it do not run."""
    with pytest.raises(psycopg.errors.UniqueViolation), transaction_of(either):
        exchange(either, [keep(1), keep(1), Request(b"SELECT pg_sleep(60)", ())])
    assert kept(either) == []
    exchange(either, [keep(2)])
    assert kept(either) == [2]


def test_an_answer_is_checked(either):
    """The check of a statement gets its answer, and what it raises undoes the transaction."""

    def check(answer):
        raise ValueError(answer.affected)

    request = Request(b"INSERT INTO kept VALUES (%s), (2)", [1], check)
    with pytest.raises(ValueError, match="2"), transaction_of(either):
        exchange(either, [keep(3), request])
    assert kept(either) == []


def test_an_error_of_a_later_statement_comes_before_a_check(keeping):
    """Where a later statement failed, its error is raised: a check may ask the server nothing."""

    def check(_):
        keeping.execute("SELECT 1")  # which would fail

    with pytest.raises(psycopg.errors.DivisionByZero), transaction_of(keeping):
        exchange(keeping, [Request(b"SELECT 1", (), check), Request(b"SELECT 1/0", ())])


def test_statements_are_prepared_once(keeping):
    """A statement is prepared once for each kind of its parameters, and stays so after errors."""
    request = Request(b"SELECT 7 / %s::integer", [1])
    for _ in range(3):
        with keeping.transaction():
            exchange(keeping, [request, request])
    with pytest.raises(psycopg.errors.DivisionByZero):
        exchange(keeping, [Request(request.query, [0]), Request(b"SELECT 'after'", ())])
    assert exchange(keeping, [request])[0].rows == [(7,)]
    prepared = [text for (text,) in keeping.execute(PREPARED).fetchall() if "7 /" in text]
    assert prepared == ["SELECT 7 / $1::integer"]


def test_a_statement_that_cannot_be_prepared_is_an_error_each_time(keeping):
    """A missing function is reported each time, and found once it is there."""
    keeping.execute("CREATE TEMPORARY TABLE makes_the_schema ()")
    missing = Request(b"SELECT pg_temp.later()", ())
    for _ in range(2):
        with pytest.raises(psycopg.errors.UndefinedFunction):
            exchange(keeping, [Request(b"SELECT 1", ()), missing])
    keeping.execute("CREATE FUNCTION pg_temp.later() RETURNS integer RETURN 1")
    assert exchange(keeping, [missing])[0].rows == [(1,)]


def test_much_is_sent_and_received(keeping):
    """Statements that fill the buffers of both sides do not block each other."""
    text = "x" * (8 << 20)
    with keeping.transaction():
        answers = exchange(keeping, [Request(b"SELECT %s::text", [text])] * 3)
    assert all(answer.rows == [(text,)] for answer in answers)


def test_a_connection_that_is_lost_is_reported(keeping, connection):
    """A connection that is lost before the commit, or before a statement, is reported."""
    pid = keeping.info.backend_pid
    requests = [Request(b"SELECT 1", ()), Request(b"SELECT 2", ())]
    with pytest.raises(DatabaseUnavailableError), translated(), transaction_of(keeping, requests):
        connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    assert keeping.closed
    with pytest.raises(DatabaseUnavailableError), translated():
        exchange(keeping, requests)


def test_the_first_statements_are_in_the_transaction(either):
    """The first statements are in the transaction, which commits at the end of the block."""
    with transaction_of(either, [keep(1), Request(b"SELECT n FROM kept", ())]) as answers:
        assert answers[-1].rows == [(1,)]
        either.execute("INSERT INTO kept VALUES (2)")
    assert kept(either) == [1, 2]
    with contextlib.suppress(ZeroDivisionError), transaction_of(either, [keep(3)]):
        raise ZeroDivisionError
    assert kept(either) == [1, 2]


def test_a_request_says_what_its_error_is(either):
    """The error of a statement is what its request makes of it; those of others are not."""

    def failed(error):
        return ValueError(error.sqlstate)

    impossible = Request(b"SELECT 1 / %s::integer", [0], failed=failed)
    with pytest.raises(ValueError, match="22012"), transaction_of(either):
        exchange(either, [impossible, keep(1)])
    with pytest.raises(psycopg.errors.UniqueViolation), transaction_of(either):
        exchange(either, [Request(b"SELECT 1", (), failed=failed), keep(1), keep(1)])


def test_a_transaction_is_committed_with_its_last_statements(either):
    """What is to be committed with its statements is, and the end of the block adds nothing."""
    with transaction_of(either, [keep(1)]):
        answers = exchange(either, [keep(2), Request(b"SELECT 7", ())], commits=True)
        assert [answer.rows for answer in answers] == [[], [(7,)]]
    assert kept(either) == [1, 2]
    with transaction_of(either):  # which is open again
        exchange(either, [keep(3)])
    assert kept(either) == [1, 2, 3]


def test_a_statement_that_fails_keeps_the_commit_from_being_run(either):
    """Where a statement fails, the commit that was sent behind it does nothing."""
    for failing in (keep(1), Request(b"SELECT 1 / (1 > %s)::integer", [1])):
        with pytest.raises(psycopg.Error), transaction_of(either, [keep(1)]):
            exchange(either, [keep(2), failing], commits=True)
        assert kept(either) == []
        assert not was_refused(either)


def test_a_refusal_of_a_commit_is_told_from_that_of_a_statement(keeping):
    """Whether the commit itself was refused is known, and nothing of it is stored."""
    keeping.execute("CREATE TEMPORARY TABLE late (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    twice = Request(b"INSERT INTO late VALUES (1), (1)", ())
    with pytest.raises(psycopg.errors.UniqueViolation), transaction_of(keeping):
        exchange(keeping, [twice], commits=True)
    assert was_refused(keeping)
    assert keeping.execute("SELECT FROM late").fetchall() == []


def test_only_the_transaction_of_the_block_is_committed_so(keeping):
    """Outside of such a block nothing is committed with statements."""
    keeping.execute("CREATE TEMPORARY TABLE kept (n integer PRIMARY KEY)")
    with contextlib.suppress(ZeroDivisionError), keeping.transaction():
        exchange(keeping, [keep(1)], commits=True)
        raise ZeroDivisionError
    assert kept(keeping) == []


def test_a_whole_transaction_is_sent_at_once(keeping, connection):
    """A transaction of which all is sent is committed, or leaves nothing, and says which."""
    connection.execute("CREATE TABLE public.whole (n integer PRIMARY KEY)")
    insert = [Request(b"INSERT INTO public.whole VALUES (%s)", [1]), Request(b"SELECT 7", ())]
    for expected in ([([], 1), ([(7,)], 1)], None):
        assert run_transaction(keeping, insert) == expected
        assert keeping.info.transaction_status is TransactionStatus.IDLE
    assert connection.execute("DELETE FROM public.whole RETURNING n").fetchall() == [(1,)]


def test_a_lost_connection_is_no_refusal(keeping):
    """Whether a transaction was committed whose answer is lost is not claimed to be known."""
    losing = Request(b"SELECT pg_terminate_backend(pg_backend_pid())", ())
    with pytest.raises(psycopg.OperationalError):
        run_transaction(keeping, [losing])
