"""Messages of other components, compared with what follows them."""

import pytest

from tests.apps.bank import drain
from tests.apps.orders import APP as FOLLOWING
from tests.apps.orders import ROOT, capture
from tests.apps.orders import orders as following
from tests.spark.ordering import Ordering

APP = "tests.spark.ordering:orders"


@pytest.fixture
def ordering(connection):
    """Give what writes payments and what became of them."""
    return Ordering(connection)


@pytest.fixture
def judged(reconcile):
    """Give the counts and findings of a run."""

    def run(*options):
        found = reconcile(*options, app=APP, app_dir=ROOT)
        return found.counts, found.findings

    return run


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


def test_each_message_needs_an_event_or_a_pass(ordering, judged, tmp_path):
    """A subscribed message that was read needs one of them, and both may come late."""
    state = ("--state", tmp_path / "state")
    write_first(ordering)
    assert judged(*state) == FIRST
    write_second(ordering)
    assert judged(*state) == SECOND


def test_what_consumers_leave_is_evidence(connection, store, reconcile):
    """An event, a pass, or a message elsewhere that a pass names and the log holds is evidence."""
    paid, nothing, shipped, lost = [capture(f"p{n}", f"o{n}", n) for n in (10, 0, 1, 1)]
    store.write_batch([paid, nothing, shipped])
    drain(connection, following)
    connection.execute("DELETE FROM message_store.messages WHERE type = 'Ship'")
    store.write(lost.message, "payment-p2")
    drain(connection, following)
    found = reconcile(app=FOLLOWING, app_dir=ROOT)
    (counts,) = found.report["subscriptions"]
    assert (counts["subscribed"], counts["handled"], counts["passed"]) == (4, 1, 2)
    assert (counts["unhandled"], found.found) == (1, ["unhandled"])
    (sample,) = found.report["samples"]
    assert sample["streamName"] == "payment-p1"
