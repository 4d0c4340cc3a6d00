"""Messages of other components, compared with what follows them."""

from datetime import UTC, datetime, timedelta

import pytest

from spark_jobs.jobs import archive as archiving
from spark_jobs.reconciliation.reconcile import in_session
from spark_jobs.reconciliation.run import Run
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests.bank import drain
from tests.orders import APP as FOLLOWING
from tests.orders import ROOT, capture
from tests.orders import orders as following
from tests.spark.conftest import JDBC_JAR
from tests.spark.ordering import Ordering, orders
from tests.spark.paths import Paths

pytestmark = pytest.mark.spark

APP = "tests.spark.ordering:orders"


@pytest.fixture
def ordering(spark_connection):
    """Give what writes payments and what became of them."""
    return Ordering(spark_connection)


@pytest.fixture
def paths(spark, spark_connection, spark_database_url, jdbc_address, tmp_path):
    """Give all paths by which the store is judged."""
    return Paths(spark, spark_database_url, jdbc_address, tmp_path, component=orders, app=APP)


def counted(**counts):
    """Return the counts of a subscribed category, 0 unless given."""
    names = ("subscribed", "handled", "passed", "pending", "unhandled", "dead")
    return {**dict.fromkeys(names, 0), **counts}


def write_first(ordering):
    """Write messages of each kind, to which the orders have come up to 17."""
    ordering.captured(1)
    ordering.paid(2, 1)
    ordering.captured(3)
    ordering.captured(4, type_="Taken")
    ordering.paid(5, 4)
    ordering.captured(6)
    mine, others = {"correlationStreamName": "order-1"}, {"correlationStreamName": "gift-1"}
    ordering.write(7, "payment-1", "Failed", {"orderId": "1"}, **mine)
    ordering.write(8, "payment-1", "Noted", {})
    ordering.write(11, "payment-1", "Failed", {"orderId": "1"}, **mine)
    ordering.write(12, "payment-1", "Failed", {"orderId": "1"}, **others)
    ordering.captured(13)
    ordering.write(14, "refund:command-1", "Refunded", {"reference": "no-1"})
    ordering.captured(15)
    ordering.paid(16, 15)
    ordering.paid(17, 15, ordinal=None)
    ordering.captured(18)
    ordering.paid(19, 999, ordinal=None)
    ordering.paid(20, 8, ordinal=None)
    ordering.write(21, "refund:command-2", "Refunded", {"reference": "no-3"})
    ordering.paid(22, 21, "4", via="3", ordinal=0)
    ordering.paid(23, 21, "4", via="3", ordinal=1)
    ordering.passed(3, 11)
    ordering.consumer(17, 13)


FIRST = (
    [
        {"events": 8, "causes": 5, "effect_twice": 1, "without_cause": 1},
        counted(subscribed=8, handled=3, passed=2, pending=1, unhandled=1, dead=1),
        counted(subscribed=2, handled=1, pending=1),
    ],
    [("effect-twice", 17), ("unhandled", 6), ("without-cause", 19)],
)


def write_second(ordering):
    """Go on: what was pending is passed or handled, and messages become visible behind."""
    ordering.captured(9)
    ordering.captured(10)
    ordering.paid(24, 10)
    ordering.paid(25, 6)
    ordering.captured(26)
    ordering.passed(9, 18)
    ordering.passed(14, category="refund:command")
    ordering.consumer(26)
    ordering.consumer(21, category="refund:command")


SECOND = (
    [
        {"events": 10, "causes": 7, "effect_twice": 1, "without_cause": 1},
        counted(subscribed=11, handled=5, passed=4, unhandled=1, dead=1),
        counted(subscribed=2, handled=1, passed=1),
    ],
    [("effect-twice", 17), ("unhandled", 26), ("without-cause", 19)],
)


def assert_all(expected, results):
    """Make sure that every path has counted, and found, what was expected."""
    counts, findings = expected
    for name, (counts_, found) in results:
        assert counts_ == counts, name
        assert found in (findings, None), name


def test_each_message_needs_an_event_or_a_pass(ordering, paths):
    """A subscribed message that was read needs an event that follows it, or a pass."""
    write_first(ordering)
    assert_all(FIRST, paths.small())


def test_what_consumers_leave_is_evidence(spark, spark_connection, spark_store, spark_database_url):
    """An event, a pass, or a message elsewhere that a pass names and the log holds is evidence."""
    paid, nothing, shipped, lost = [capture(f"p{n}", f"o{n}", n) for n in (10, 0, 1, 1)]
    spark_store.write_batch([paid, nothing, shipped])
    drain(spark_connection, following)
    spark_connection.execute("DELETE FROM message_store.messages WHERE type = 'Ship'")
    spark_store.write(lost.message, "payment-p2")
    drain(spark_connection, following)
    run = Run(following, FOLLOWING, ROOT, spark_database_url)
    with exported_snapshot(spark_database_url) as snapshot:
        report = in_session(run, snapshot, spark)
    (counts,) = report.subscriptions
    assert (counts.subscribed, counts.handled, counts.passed) == (4, 1, 2)
    (found,) = report.findings
    assert (found.finding, found.stream_name) == ("unhandled", "payment-p1")
    assert (counts.unhandled, report.count("unhandled")) == (1, 1)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_path_counts_the_same(
    ordering, paths, spark, spark_database_url, tmp_path, monkeypatch
):
    """Every path counts the same, also what comes late: messages, their events and their passes."""
    write_first(ordering)
    assert_all(FIRST, [*paths.small(), *paths.state(), *paths.follow(0)])
    assert_all(FIRST, [*paths.by_fingerprints(monkeypatch), *paths.state(), *paths.follow(1000)])
    write_second(ordering)
    assert_all(SECOND, [*paths.state(), *paths.follow(2000), *paths.small()])
    assert_all(SECOND, [*paths.by_fingerprints(monkeypatch)])
    archive, before = tmp_path / "archive", datetime.now(UTC) + timedelta(days=1)
    with exported_snapshot(spark_database_url) as snapshot:
        assert not archiving.in_session(orders, archive, before, snapshot, spark).differences
    assert_all(SECOND, [*paths.archived(monkeypatch, archive), *paths.state()])


@pytest.mark.long
def test_jdbc_finds_late_passes_too(spark, ordering, jdbc_address, tmp_path):
    """Through JDBC, which cannot look up single rows, a state finds the passes that came later."""
    if jdbc_address is None:
        pytest.skip("the server listens to a socket only, or the jar of Java's driver is absent")
    paths = Paths(spark, jdbc_address, jdbc_address, tmp_path, component=orders, app=APP)
    write_first(ordering)
    assert_all(FIRST, paths.state(jdbc=JDBC_JAR))
    write_second(ordering)
    assert_all(SECOND, paths.state(jdbc=JDBC_JAR))
