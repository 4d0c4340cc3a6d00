"""How much of a large store each statement touches, counted by the server.

Every call is made by a session that is new, and by one that planned it while the log was small;
on a log that was never analyzed, on one that was, and on one that was when it was small. What is
written is rolled back. The bounds are the same for 10,000 messages and for 1,000,000.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from psycopg import Connection, IsolationLevel, conninfo, sql

from consumers.group.inspection.summary import read_summary
from reservation.idempotence.reserve import ReserveOutcome
from reservation.postgres.connection import connect
from tests.soak.large_calls import growing_calls, store_calls
from tests.soak.large_consuming import consumer_calls, growing_consumer_calls
from tests.soak.large_keeping import growing_keeping_calls, keeping_calls
from tests.support.large_log import (
    BATCH,
    COMMANDS,
    LARGE,
    OPEN_LETTERS,
    SIZES,
    SMALL,
    analyze,
    call,
    fill,
    plan,
    run,
)

STATISTICS = ["never analyzed", "analyzed while small", "analyzed"]
SESSIONS = ["new", "older than most messages"]
SHORT, LONG = SIZES["10,000"], SIZES["1,000,000"]


def bounded(size):
    """Return the calls whose bounds do not depend on the size of the log."""
    return store_calls(size) | consumer_calls(size) | keeping_calls(size)


def growing(size):
    """Return the calls that look through a share of the log, or of a stream."""
    return growing_calls(size) | growing_consumer_calls(size) | growing_keeping_calls(size)


@contextmanager
def log(admin, server_url, template, size, statistics) -> Iterator[dict[str, Connection]]:
    """Give sessions on a log: one that is new, and one that is older than its messages."""
    database = f"large_{size.sent}_{os.getpid()}"
    name = sql.Identifier(database)
    calls = (bounded(size) | growing(size)).values()
    admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(name, sql.Identifier(template)))
    try:
        url = conninfo.make_conninfo(server_url, dbname=database)
        with connect(url, autocommit=True) as older, connect(url, autocommit=True) as new:
            for table in LARGE:
                new.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            # What the calls write, and is rolled back, takes no number of what is to come.
            new.execute(
                "ALTER SEQUENCE message_store.messages_global_position_seq RESTART 10000000"
            )
            if statistics == "analyzed while small":
                fill(new, size, 1, SMALL)
                analyze(new)
                plan(older, calls)
            else:
                plan(older, calls)
                fill(new, size, 1, SMALL)
            fill(new, size, SMALL + 1, size.sent)
            if statistics == "analyzed":
                analyze(new)
            yield dict(zip(SESSIONS, (new, older), strict=True))
    finally:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture(scope="module", params=STATISTICS)
def large(request, admin, server_url, template) -> Iterator[dict[str, Connection]]:
    """Give sessions on a log of 10,000 messages."""
    with log(admin, server_url, template, SHORT, request.param) as sessions:
        yield sessions


def excess(connection, work):
    """Return what a call touches beyond its bounds; None if it keeps them.

    It runs twice, because the first time it may meet what others have rolled back, which is passed
    over from then on.
    """
    run(connection, work.do)
    counted = run(connection, work.do)
    within = counted.scanned + counted.fetched <= work.rows and counted.buffers <= work.buffers
    return None if within else counted._replace(result=None)


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("name", bounded(SHORT))
def test_no_call_touches_more_than_its_batch(large, session, name):
    """No call reads more rows and pages than its batch needs, whatever the planner knows."""
    assert excess(large[session], bounded(SHORT)[name]) is None


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("name", growing(SHORT))
def test_what_looks_through_a_share_touches_no_more(large, session, name):
    """What has to look through a part of the log, or of a stream, does not do so twice."""
    assert excess(large[session], growing(SHORT)[name]) is None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("statistics", STATISTICS)
def test_no_call_touches_more_of_a_long_log(admin, server_url, template, statistics):
    """The bounds are the same in a log that is a hundred times as long."""
    with log(admin, server_url, template, LONG, statistics) as sessions:
        found = {
            (name, session): excess(connection, work)
            for name, work in (bounded(LONG) | growing(LONG)).items()
            for session, connection in sessions.items()
        }
    assert {key: counted for key, counted in found.items() if counted is not None} == {}
    assert bounded(LONG).keys() == bounded(SHORT).keys()
    assert all(
        (work.rows, work.buffers) == (bounded(SHORT)[name].rows, bounded(SHORT)[name].buffers)
        for name, work in bounded(LONG).items()
    )


@pytest.mark.parametrize("session", SESSIONS)
def test_a_summary_touches_no_more_than_it_counts(large, session):
    """How a consumer stands is read from the next messages alone, however many there are."""
    connection = large[session]
    connection.isolation_level = IsolationLevel.REPEATABLE_READ  # as in the transaction of its own
    try:
        counted = run(
            connection, lambda c: read_summary(c, [("account", COMMANDS)], most_counted=BATCH)
        )
    finally:
        connection.isolation_level = None
    (one,) = counted.result.consumers
    assert (one.lag.messages, one.lag.at_least) == (BATCH, True)
    assert counted.scanned == 0
    # As many that are scheduled, and twice the letters that are open: how many, of which entities.
    assert counted.fetched <= 2 * BATCH + 2 + 2 * OPEN_LETTERS


def test_the_calls_do_what_they_are_counted_for(large):
    """The counted calls find what they look for."""
    calls = bounded(SHORT) | growing(SHORT)
    found = {name: run(large["new"], work.do).result for name, work in calls.items()}
    sizes = {name: len(result) for name, result in found.items() if isinstance(result, list | dict)}
    assert {name for name, size in sizes.items() if not size} == {
        "a category that is empty",
        "a correlation that there is not",
        "looking for ids",
    }
    assert sizes["a rare correlation"] == 10
    assert sizes["the snapshots of many streams"] == BATCH
    assert sizes["snapshots that are there"] == BATCH
    assert sizes["a member of five"] == sizes["a member and a frequent correlation"] == BATCH
    assert all(key is not None for key in found["commands with their keys"][1])
    assert found["reserving reissues"].count(ReserveOutcome.RESERVED) == 1
    assert set(found["comparing what initiated"]) == {ReserveOutcome.DUPLICATE}
    assert len(found["what was reserved first"]) == len(found["what initiated"]) == BATCH - 2
    assert found["a sample of the types of events"] == ["Deposit"]
    assert found["a batch of commands"].counts == {"reserved": BATCH}
    assert found["a batch of reserved commands"].counts == {"handled": BATCH}
    assert found["recognizing by a table"].count(True) == BATCH // 10
    assert not any(found["remembering in a table"])
    assert found["writing what is due"].written == BATCH
    assert found["the outcome of what was handled"].state == "handled"
    assert found["the outcome of what was reserved"].state == "pending"
    assert found["the outcome of what is unknown"].state == "unknown"
    assert found["a new request"].answer.body == b"answer"
    assert sizes["a part that ends before its category"] == BATCH // 2
    assert 0 < sizes["partitions that end before their category"] < BATCH // 2
    assert found["raising revisions"].count(True) == 0
    assert found["drawing revisions"] == [2, 1]
    assert found["recognizing by a table that forgets"].count(True) == BATCH // 10
    assert not any(found["remembering in a table that forgets"])
    assert len(found["the entities that are blocked"]) == 95  # five letters are of none
    assert found["how many letters wait"] == OPEN_LETTERS // 2
    assert sizes["lining up letters"] == sizes["failing letters again"] == BATCH
    assert found["counting an attempt at a letter"] == 1
    assert found["counting an attempt at a message"] == 1
    assert sizes["corrections of a batch"] == BATCH // 10
    assert found["writing each of a batch"].count(None) == 1
    assert sizes["sending a batch"] == BATCH
    assert found["cancelling what is scheduled"] == found["cancelling as a sender"]
    assert found["asking as a sender"].state == "pending"
    assert found["the outcome of what initiates"].state == "unknown"


def test_what_is_counted_shows_a_scan_and_a_fetch(large):
    """The counters notice a scan, a fetch and the pages; otherwise nothing here could fail."""
    every = "SELECT count(data) FROM message_store.messages"
    ((messages, pages),) = call(
        "SELECT count(*), pg_relation_size('message_store.messages') "
        "/ current_setting('block_size')::int FROM message_store.messages"
    )(large["new"])
    counted = run(large["new"], call(every))
    assert counted.scanned == messages > 10_000
    assert pages <= counted.buffers <= 1.1 * pages
    found = run(
        large["new"],
        lambda c: [
            c.execute("SET LOCAL enable_seqscan = off"),
            c.execute("SET LOCAL enable_bitmapscan = off"),
            c.execute(every + " WHERE global_position < 1000").fetchall(),
        ],
    )
    assert found.scanned == 0
    assert 999 <= found.fetched <= 1001  # the planner itself may look for the ends of the index
    assert found.buffers >= 3


@pytest.mark.parametrize("analyzed", [False, True])
def test_no_statement_of_ours_touches_more_in_a_store_of_message_db(
    make_database, message_db_template, analyzed
):
    """No statement scans the log, though the planner cannot look into `category`."""
    with connect(make_database(message_db_template), autocommit=True) as connection:
        connection.execute("ALTER TABLE message_store.messages SET (autovacuum_enabled = off)")
        connection.execute(
            "ALTER SEQUENCE message_store.messages_global_position_seq RESTART 1000000"
        )
        fill(connection, SHORT, 1, SHORT.sent)
        if analyzed:
            connection.execute("ANALYZE message_store.messages")
        for name, work in (store_calls(SHORT) | growing_calls(SHORT)).items():
            if "Message DB" not in name:
                counted = run(connection, work.do)
                assert counted.scanned + counted.fetched <= work.rows, name
