"""Statements of handlers that are sent together: the answers and rows are those of one by one.

It goes in by the module itself, because each way to use a connection of psycopg's is tried here.
"""

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row, scalar_row

from reservation.postgres.exchange import deferring
from reservation.postgres.exchange.deferring import MOST, TakenBackError
from reservation.postgres.exchange.keeping_connection import KeepingConnection
from tests.apps.bank import session

INSERT = "INSERT INTO kept VALUES (%s)"
ADD = "UPDATE kept SET n = n + 100 WHERE n >= %s"
READ = "SELECT n FROM kept WHERE n > %s ORDER BY n"


@pytest.fixture
def keeping(database_url):
    """Give a connection as consumers have it, in a transaction."""
    with session(database_url) as opened:
        opened.connection.execute("CREATE TEMPORARY TABLE kept (n integer PRIMARY KEY)")
        with opened.connection.transaction():
            yield opened.connection


@pytest.fixture
def waits(monkeypatch):
    """Give the round trips that are waited for, once for each time."""
    found, wait = [], psycopg.Connection.wait

    def counted(connection, *arguments, **options):
        found.append(connection)
        return wait(connection, *arguments, **options)

    monkeypatch.setattr(psycopg.Connection, "wait", counted)
    return found


def nothing() -> None:
    """Take no notice of an answer."""


def kept(connection):
    return [n for (n,) in connection.execute("SELECT n FROM kept ORDER BY n").fetchall()]


def test_statements_are_sent_together(keeping, waits):
    """A thousand take a few round trips, and it is reported when answers come."""
    answered = []
    with keeping.together(lambda: answered.append(1)):
        for n in range(1000):
            keeping.execute(INSERT, [n])
    assert kept(keeping) == list(range(1000))
    assert len(waits) < 2 * 1000 / MOST
    assert answered


def test_slow_statements_are_sent_one_by_one(keeping, waits, monkeypatch):
    """Their answers are signs of life, which would come too late if many were sent at a time."""
    monkeypatch.setattr(deferring, "_SOON", 0.0)
    with keeping.together(nothing):
        for n in range(10):
            waits.clear()
            keeping.execute(INSERT, [n])
            assert waits == [keeping]
    assert kept(keeping) == list(range(10))


def test_large_statements_are_sent_soon(keeping, waits):
    """What waits takes no more memory than it needs to."""
    with keeping.together(nothing):
        for n in range(2 * MOST):
            keeping.execute(INSERT, [n])
        keeping.execute(READ, [0]).fetchall()
        waits.clear()
        keeping.execute("SELECT %s", ["x" * (1 << 20)])
        assert waits == [keeping]


def test_without_a_statement_nothing_is_sent(keeping, waits):
    """A handler that does not use the connection costs no round trip."""
    waits.clear()
    with keeping.together(nothing):
        pass
    assert [type(one) for one in waits if not one.closed] in ([], [KeepingConnection])


def rows_of(connection):
    return connection.execute(READ, [0]).fetchall()


def rows_of_a_cursor(connection):
    with connection.cursor(row_factory=scalar_row) as cursor:
        cursor.execute(INSERT, [8])
        cursor.execute(READ, [1])
        return [cursor.fetchone(), cursor.rownumber, *cursor.fetchmany(1), *cursor]


def counts(connection):
    message = connection.execute(ADD, [2]).statusmessage
    changed = connection.execute(ADD, [3])
    read = connection.execute(READ, [0])
    return message, changed.rowcount, read.rowcount, read.description[0].name


def results(connection):
    cursor = connection.execute(READ, [0], binary=True)
    one = cursor.set_result(0).fetchall()
    return one, cursor.nextset(), [each.fetchall() for each in cursor.results()], cursor.pgresult


def a_closed_cursor(connection):
    with connection.cursor() as cursor:
        cursor.execute(ADD, [3])
    return cursor.closed


def a_changed_parameter(connection):
    given = [11]
    connection.execute("INSERT INTO kept SELECT unnest(%s::int[])", [given])
    given.append(12)
    row = {"n": 13}
    connection.execute("INSERT INTO kept VALUES (%(n)s)", row)
    row["n"] = 14


def a_block(connection):
    connection.execute(INSERT, [4])
    with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
        connection.execute("INSERT INTO kept VALUES (5), (5)")
    with connection.transaction():
        connection.execute(INSERT, [6])


def executes_many(connection):
    connection.execute(INSERT, [4])
    cursor = connection.cursor()
    cursor.executemany(INSERT, [[5], [6]])
    return cursor.rowcount


def copies(connection):
    connection.execute(INSERT, [4])
    with connection.cursor().copy("COPY kept FROM STDIN") as copy:
        copy.write_row([5])
    connection.execute(INSERT, [6])
    with connection.cursor().copy("COPY (SELECT n FROM kept ORDER BY 1) TO STDOUT") as copy:
        return list(copy.rows())


def streams(connection):
    connection.execute(INSERT, [4])
    return list(connection.cursor().stream(READ, [0]))


def other_cursors(connection):
    connection.execute(INSERT, [4])
    client = psycopg.ClientCursor(connection).execute(READ, [1])
    with connection.cursor("mine") as named:
        named.execute(READ, [0])
        return client.fetchall(), client.rowcount, named.fetchall()


def a_pipeline(connection):
    connection.execute(INSERT, [4])
    with connection.pipeline():
        read = connection.execute(READ, [0])
        connection.execute(INSERT, [5])
        return read.fetchall()


def without_parameters(connection):
    connection.execute(INSERT, [4])
    connection.execute("INSERT INTO kept VALUES (5); INSERT INTO kept VALUES (6)")
    return connection.execute("TABLE kept").rowcount


def composed(connection):
    query = sql.SQL("INSERT INTO {} VALUES (%s) RETURNING n AS made").format(sql.Identifier("kept"))
    cursor = connection.cursor(row_factory=dict_row, binary=True)
    return cursor.execute(query, [4]).fetchall(), cursor.execute(query, [5], prepare=True).rowcount


def much(connection):
    text = "x" * (1 << 20)
    read = [connection.execute("SELECT length(%s), %s::text", [text, text]) for _ in range(4)]
    return [cursor.fetchone() == (len(text), text) for cursor in read]


def notices(connection):
    heard = []

    def hear(notice):
        heard.append(notice.message_primary)

    connection.execute(
        "CREATE OR REPLACE FUNCTION pg_temp.tell(what text) RETURNS void LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE NOTICE '%', what; END $$"
    )
    connection.add_notice_handler(hear)
    connection.execute("SELECT pg_temp.tell(%s)", ["told"])
    connection.remove_notice_handler(hear)
    return heard


def a_refusal(connection):
    with pytest.raises(psycopg.ProgrammingError, match="placeholder"):
        connection.execute(INSERT, [1, 2])
    return kept(connection)


@pytest.mark.parametrize(
    "use",
    [
        rows_of,
        rows_of_a_cursor,
        counts,
        results,
        a_closed_cursor,
        a_changed_parameter,
        a_block,
        executes_many,
        copies,
        streams,
        other_cursors,
        a_pipeline,
        without_parameters,
        composed,
        much,
        notices,
        a_refusal,
    ],
)
def test_it_is_as_if_each_were_sent_at_once(keeping, use):
    """However the connection is used between statements, and whatever is asked of a cursor."""

    def run():
        for n in (1, 2, 3):
            keeping.execute(INSERT, [n])
        found = shown(use(keeping))
        keeping.execute(ADD, [100])
        return found, kept(keeping)

    with keeping.transaction(force_rollback=True):
        expected = run()
    with keeping.together(nothing):
        found = run()
    assert found == expected


def shown(found):
    """Return what was found, results of libpq by their kind."""
    if isinstance(found, tuple):
        return tuple(map(shown, found))
    return type(found).__name__ if isinstance(found, psycopg.pq.PGresult) else found


def raises(connection):
    raise ZeroDivisionError


def fails(connection):
    connection.execute("SELECT 1 / %s", [0])


def fails_and_reads(connection):
    connection.execute("SELECT 1 / %s", [0]).fetchall()


def fails_at_once(connection):
    connection.execute("SELECT 1 / 0")


def swallows(connection):
    fails(connection)
    with pytest.raises(psycopg.errors.DivisionByZero):
        kept(connection)


def swallows_and_goes_back(connection):
    connection.execute("SAVEPOINT mine")
    swallows(connection)
    connection.execute("ROLLBACK TO mine")
    assert kept(connection) == [1]


@pytest.mark.parametrize(
    "fail", [raises, fails, fails_and_reads, fails_at_once, swallows, swallows_and_goes_back]
)
def test_all_is_taken_back_where_anything_fails(keeping, fail):
    """Whoever was given the error, and what came before stays."""
    keeping.execute(INSERT, [7])

    def run():
        with keeping.together(nothing):
            keeping.execute("DELETE FROM kept WHERE n = %s", [7])
            keeping.execute(INSERT, [1])
            fail(keeping)

    with pytest.raises(TakenBackError):
        run()
    assert kept(keeping) == [7]
    keeping.execute(INSERT, [8])
    assert kept(keeping) == [7, 8]


def test_where_nothing_can_be_taken_back_the_error_is_raised(database_url, connection):
    """The connection is lost, or closed."""

    def run(end):
        with session(database_url) as opened:
            opened.connection.execute("BEGIN")
            with opened.connection.together(nothing):
                opened.connection.execute("SELECT %s", [1])
                end(opened.connection)

    def lose(keeping):
        connection.execute("SELECT pg_terminate_backend(%s, 10000)", [keeping.info.backend_pid])
        keeping.execute("SELECT %s", [2])

    def close(keeping):
        keeping.close()
        raise ZeroDivisionError

    with pytest.raises(psycopg.OperationalError):
        run(lose)
    with pytest.raises(ZeroDivisionError):
        run(close)


def test_an_interrupt_while_it_waits_closes_the_connection(database_url):
    """What the server answers later would be taken for the answer to something else."""

    def interrupt():
        raise KeyboardInterrupt

    with session(database_url) as opened:
        opened.connection.execute("BEGIN")

        def run():
            with opened.connection.together(interrupt):
                opened.connection.execute("SELECT %s", [1])

        with pytest.raises(KeyboardInterrupt):
            run()
        assert opened.connection.closed
