"""The shop of the examples: kills, an outage, and what is left in the end."""

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.processes.test_shop import Shop
from tests.support import chance
from tests.support.started import PATIENCE

ORDERS = 60


def test_an_order_that_is_paid_too_late_is_cancelled_and_refunded(database_url, store, tmp_path):
    """The order is cancelled when its time is up, and what comes in later is given back."""
    del store
    with Shop(database_url, tmp_path, pay_within="500ms") as shop:
        shop.provider.__exit__()
        _, placed = shop.order("alice", "book", "1")
        shown = shop.until("alice", placed["order"], {"cancelled"})
        assert shown["reason"] == "not paid in time"
        with shop.provider:
            deadline = time.monotonic() + PATIENCE
            while len(ledger := shop.ledger()) < 2:
                assert time.monotonic() < deadline, ledger
                threading.Event().wait(0.05)
    assert [(entry["path"], entry["cents"]) for entry in ledger] == [
        ("/charges", 1900),
        ("/refunds", 1900),
    ]


@pytest.mark.timeout(600)
def test_nothing_is_lost_or_done_twice_while_everything_is_killed(database_url, store, tmp_path):
    """Every order is paid once or cancelled, and both components reconcile, whatever is killed."""
    drawn = random.Random(chance.FIRST)
    with Shop(database_url, tmp_path, pay_within="20s") as shop:
        with ThreadPoolExecutor(8) as customers:
            asked = [
                customers.submit(
                    shop.order,
                    f"{drawn.choice(['ann', 'bob', 'broke'])}{n}",
                    drawn.choice(["book", "lamp", "chair", "yacht"]),
                    str(n),
                )
                for n in range(ORDERS)
            ]
            for n in range(8):
                asked[n * ORDERS // 8].result()
                match n % 4:
                    case 0:
                        shop.kill("shop:orders")
                    case 1:
                        shop.web.again()
                    case 2:
                        shop.kill("shop:payments")
                    case 3:
                        shop.provider.again()
            answers = [one.result() for one in asked]
        deadline = time.monotonic() + 2 * PATIENCE
        while unsettled(store):
            assert time.monotonic() < deadline, unsettled(store)
            threading.Event().wait(0.2)
        ledger = shop.ledger()
        orders, payments = shop.reconciled()
    placed = [answer for status, answer in answers if status == 201]
    assert Counter(status for status, _ in answers)[422] == ORDERS - len(placed)
    states = {order: types[-1:] for order, types in events_of(store, "order").items()}
    captured = {entry["receipt"]: entry["cents"] for entry in ledger if entry["path"] == "/charges"}
    refunded = {entry["receipt"] for entry in ledger if entry["path"] == "/refunds"}
    paid = [order for order in placed if states[f"order-{order['order']}"] == ["Paid"]]
    assert len(captured) == len(paid) + len(refunded)
    assert sum(captured.values()) >= sum(order["cents"] for order in paid)
    (subscribed,) = orders["subscriptions"]
    assert subscribed["subscribed"] == subscribed["handled"] + subscribed["passed"]
    assert subscribed["subscribed"] > 0
    assert payments["events"]["events"] == len(captured) + len(refunded) + declined(store)


def events_of(store, category):
    """Return the types of the events of each entity, by their streams, without pseudo events."""
    found = {}
    for message in store.read_category(category):
        types = found.setdefault(message.stream_name, [])
        if message.type != "PseudoEvent":
            types.append(message.type)
    return found


def declined(store):
    """Return how many payments were declined."""
    return sum(message.type == "Declined" for message in store.read_category("payment"))


def unsettled(store):
    """Return the orders that are neither paid nor cancelled, or whose money is on its way."""
    orders, payments = events_of(store, "order"), events_of(store, "payment")
    placed = {name: types for name, types in orders.items() if types}
    open_ = [name for name, types in placed.items() if types[-1] == "Placed"]
    for name, types in placed.items():
        paid = payments.get(name.replace("order-", "payment-", 1), [])
        asked = "Placed" in types
        if (asked and not paid) or (types[-1] == "Cancelled" and paid == ["Captured"]):
            open_.append(name)
    return open_
