"""How much of a large store each statement touches, counted by the server.

The log holds 100,000 messages, and beside it there are 40,000 versions of states. Every call is
made by a session that is new, and by one that planned it while there were next to none; on a log
that was never analyzed, on one that was, and on one that was when it was small. What is written is
rolled back.
"""

import os
from collections.abc import Iterator

import pytest
from psycopg import Connection, IsolationLevel, conninfo, sql

from consumers.group.inspection.summary import read_summary
from reservation.idempotence.reserve import ReserveOutcome
from reservation.postgres.connection import connect
from tests.large_log import (
    BATCH,
    COMMANDS,
    LARGE,
    RESERVED,
    SENT,
    SMALL,
    WORK,
    analyze,
    call,
    fill,
    plan,
    run,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["never analyzed", "analyzed", "analyzed while small"])
def large(request, admin, server_url, template) -> Iterator[dict[str, Connection]]:
    """Give sessions on a large log: one that is new, and one that is older than its messages."""
    database = f"large_{os.getpid()}"
    name = sql.Identifier(database)
    admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(name, sql.Identifier(template)))
    try:
        url = conninfo.make_conninfo(server_url, dbname=database)
        with connect(url, autocommit=True) as older, connect(url, autocommit=True) as new:
            for table in LARGE:
                new.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            # What the calls write, and is rolled back, takes no number of what is to come.
            new.execute("ALTER SEQUENCE message_store.messages_global_position_seq RESTART 1000000")
            plan(older)
            fill(new, 1, SMALL)
            if request.param == "analyzed while small":
                analyze(new)
            plan(older)
            fill(new, SMALL + 1, SENT)
            if request.param == "analyzed":
                analyze(new)
            yield {"new": new, "older than most messages": older}
    finally:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.mark.parametrize("session", ["new", "older than most messages"])
@pytest.mark.parametrize("name", WORK)
def test_no_call_touches_more_than_its_batch(large, session, name):
    """No call reads more rows than its batch, whatever statistics the planner has."""
    counted = run(large[session], WORK[name].do)
    assert counted.scanned == 0
    assert counted.fetched <= WORK[name].rows


@pytest.mark.parametrize("session", ["new", "older than most messages"])
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
    assert counted.fetched <= BATCH + 2


def test_the_calls_do_what_they_are_counted_for(large):
    """The counted calls find what they look for."""
    found = {name: run(large["new"], work.do).result for name, work in WORK.items()}
    sizes = {name: len(result) for name, result in found.items() if isinstance(result, list | dict)}
    assert {name for name, size in sizes.items() if not size} == {
        "a category that is empty",
        "a correlation that there is not",
        "looking for ids",
    }
    assert sizes["a rare correlation"] == 10
    assert sizes["the snapshots of many streams"] == BATCH
    assert sizes["a member of five"] == sizes["a member and a frequent correlation"] == BATCH
    assert all(key is not None for key in found["commands with their keys"][1])
    assert found["reserving reissues"].count(ReserveOutcome.RESERVED) == 1
    assert set(found["comparing what initiated"]) == {ReserveOutcome.DUPLICATE}
    assert len(found["what was reserved first"]) == len(found["what initiated"]) == BATCH - 2
    assert found["a sample of the types of events"] == ["Deposit"]


def test_what_is_counted_shows_a_scan_and_a_fetch(large):
    """The counters notice a scan and a fetch; otherwise nothing here could fail."""
    every = "SELECT count(data) FROM message_store.messages"
    assert run(large["new"], call(every)).scanned == SENT + RESERVED - 1 == 100_000
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
