"""The letters of an entity in partitions of several holders: nothing passes them, none is left."""

import contextlib
import threading
from dataclasses import dataclass, field

import psycopg
import pytest

from reservation import Component
from reservation.strategies import StateBased
from tests.apps.orders import PAYMENTS, Captured, Paid, capture
from tests.consumers.builders import decide, letters
from tests.support.consuming import members, until
from tests.support.started import PATIENCE


@dataclass
class Order:
    payments: list[str] = field(default_factory=list)


class Orders:
    """A component that follows payments, which are in streams of their own.

    A payment is named by its partition and a number, as in 0-1.
    """

    def __init__(self, connection, **options):
        self.connection = connection
        self.failing = set()
        self.calls = []
        self.entered, self.gate = threading.Event(), threading.Event()
        self.gate.set()
        self.component = Component("order", entity=Order, id="order_id", attempts=1)
        self.component.handle(Captured, category=PAYMENTS, **options)(self.captured)
        self.component.project(Paid)(self.paid)
        self._streams = {}

    def captured(self, event, order, context):
        name = self.name(event.payment_id)
        self.calls.append(name)
        if not self.gate.is_set():
            self.entered.set()
            assert self.gate.wait(PATIENCE)
        if name in self.failing:
            raise ValueError
        return Paid(event.order_id, event.payment_id)

    def paid(self, order, event):
        order.payments.append(event.payment_id)

    def name(self, payment_id):
        return self._streams[payment_id]

    def send(self, store, *names):
        """Write payments of one order, each into a stream of its partition."""
        for name in names:
            self._streams[self._id(name)] = name
            store.write_batch([capture(self._id(name))])

    def _id(self, name):
        (found,) = self.connection.execute(
            "SELECT %(name)s || '-' || n FROM generate_series(1, 100) n WHERE"
            " reservation.partition_of('payment-' || %(name)s || '-' || n, 2) = %(of)s LIMIT 1",
            {"name": name.replace("-", "n"), "of": int(name[0])},
        ).fetchone()
        return found

    def states(self):
        """Return the state of each letter, by its payment."""
        return {
            self.name(row["stream_name"].removeprefix("payment-")): row["state"]
            for row in letters(self.connection)
        }

    def position(self, name):
        (position,) = self.connection.execute(
            "SELECT global_position FROM message_store.messages WHERE stream_name = %s",
            [f"payment-{self._id(name)}"],
        ).fetchone()
        return position

    def retry(self, *names):
        decide(self.connection, "retry", *(str(self.position(name)) for name in names))

    def discard(self, name):
        decide(self.connection, "discard", str(self.position(name)), "--yes")

    def running(self, database_url):
        """Run a consumer for each of two partitions."""
        return members(self.component, database_url, PAYMENTS)

    def until_all_are(self, state):
        until(lambda: set(self.states().values()) == {state})

    def drained(self):
        """Wait until every message was passed."""
        until(
            lambda: (
                self.connection.execute(
                    "SELECT min(p.position) >= reservation.category_head(p.category)"
                    " AND count(*) = 2 FROM reservation.positions p"
                    " WHERE p.consumer = 'order' AND p.category = %s"
                    " GROUP BY p.category",
                    [PAYMENTS],
                ).fetchone()
                == (True,)
            )
        )

    def turned(self, partition):
        """Wait until the holder of a partition has looked twice for what it is to do."""

        def looked():
            return self.connection.execute(
                "SELECT reservation.lease_end(holder) FROM reservation.leases WHERE partition = %s",
                [partition],
            ).fetchone()

        for _ in range(2):
            before = looked()
            until(lambda before=before: looked() != before)


@pytest.fixture
def orders(connection):
    return Orders(connection)


@contextlib.contextmanager
def commits_held_back(connection, database_url, number):
    """Hold back every commit with a letter; at the end of the block so many are waiting."""
    connection.execute(
        """
        CREATE FUNCTION public.hold_back() RETURNS trigger LANGUAGE plpgsql
        SET lock_timeout = 0 AS $$
        BEGIN
          PERFORM pg_advisory_xact_lock_shared(4711);
          RETURN NULL;
        END $$;
        CREATE CONSTRAINT TRIGGER hold_back AFTER INSERT OR UPDATE ON reservation.dead_letters
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.hold_back()
        """
    )
    with psycopg.connect(database_url, autocommit=True) as holding:
        holding.execute("SELECT pg_advisory_lock(4711)")
        yield
        until(lambda: held_back(connection) == number)


def held_back(connection):
    """Return how many commits are held back."""
    return connection.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted"
    ).fetchone()[0]


def test_what_is_parked_while_the_letter_before_it_ends_is_called(
    connection, store, database_url, orders
):
    """Of two that commit at the same time, one calls what neither saw."""
    orders.failing = {"0-1", "1-1"}
    with orders.running(database_url):
        orders.send(store, "0-1", "1-1")
        orders.drained()
        orders.discard("1-1")
        orders.failing = set()
        orders.gate.clear()
        orders.retry("0-1")
        assert orders.entered.wait(PATIENCE)
        with commits_held_back(connection, database_url, 2):
            orders.send(store, "1-2")
            until(lambda: held_back(connection) == 1)
            orders.gate.set()
        until(lambda: orders.states() == {"0-1": "handled", "1-1": "discarded", "1-2": "handled"})
    assert orders.calls[-1] == "1-2"


def test_two_letters_that_end_at_the_same_time_leave_nothing_behind(
    connection, store, database_url, orders
):
    """Each in another partition, with a message parked behind both."""
    orders.failing = {"0-1", "1-1"}
    with orders.running(database_url):
        orders.send(store, "0-1", "1-1", "0-2")
        orders.drained()
    connection.execute(
        "UPDATE reservation.dead_letters"
        " SET state = 'dead', reason = 'handler', next_attempt_at = NULL"
        " WHERE global_position = %s",
        [orders.position("1-1")],
    )
    assert orders.states() == {"0-1": "dead", "1-1": "dead", "0-2": "parked"}
    orders.failing = set()
    orders.calls.clear()
    with orders.running(database_url):
        orders.gate.clear()
        orders.retry("0-1", "1-1")
        assert orders.entered.wait(PATIENCE)
        orders.turned(1)
        orders.gate.set()
        orders.until_all_are("handled")
    assert orders.calls[0] == "0-1"


@pytest.mark.parametrize("kind", ["plain", "async", "states"])
def test_a_letter_holds_up_its_entity_in_partitions_of_others(
    connection, store, database_url, kind
):
    """What was sent after a letter was committed waits for it, whoever reads it; others do not."""
    orders = Orders(connection, **({"once": StateBased("whole")} if kind == "states" else {}))
    if kind == "async":
        handle = orders.captured

        async def captured(event, order, context):
            return handle(event, order, context)

        orders.component = Component("order", entity=Order, id="order_id", attempts=1)
        orders.component.handle(Captured, category=PAYMENTS)(captured)
        orders.component.project(Paid)(orders.paid)
    orders.failing = {"0-1"}
    with orders.running(database_url):
        orders.send(store, "0-1")
        orders.drained()
        orders.send(store, "1-1", "0-2", "1-2")
        store.write_batch([capture("other", "o2")])
        orders._streams["other"] = "other"
        orders.drained()
        assert orders.states() == dict.fromkeys(["1-1", "0-2", "1-2"], "parked") | {"0-1": "dead"}
        assert set(orders.calls) == {"0-1", "other"}
        orders.calls.clear()
        orders.failing = set()
        orders.retry("0-1")
        orders.until_all_are("handled")
        orders.send(store, "1-3", "0-3")
        orders.drained()
    assert len(orders.states()) == 4
    assert set(orders.calls) == {"0-1", "0-2", "0-3", "1-1", "1-2", "1-3"}
    assert orders.calls[0] == "0-1"


def test_a_letter_is_not_retried_past_a_dead_one_of_another(
    connection, store, database_url, orders
):
    """A letter waits for a dead one before it, although another process holds that one."""
    orders.failing = {"0-1", "1-1"}
    with orders.running(database_url):
        orders.send(store, "0-1", "1-1")
        orders.drained()
    connection.execute(
        "UPDATE reservation.dead_letters"
        " SET state = 'dead', reason = 'handler', next_attempt_at = NULL"
    )
    orders.failing = set()
    orders.calls.clear()
    with orders.running(database_url):
        orders.retry("1-1")
        orders.turned(1)
        orders.turned(0)
        assert orders.calls == []
        orders.discard("0-1")
        until(lambda: orders.states() == {"0-1": "discarded", "1-1": "handled"})


def park(store, orders):
    """Have one letter parked behind another, while the consumers run."""
    orders.failing = {"0-1"}
    orders.send(store, "0-1")
    orders.drained()
    orders.send(store, "1-1")
    orders.drained()
    assert orders.states() == {"0-1": "dead", "1-1": "parked"}


def strand(connection):
    """Have letters parked behind nothing, as a process that was killed could."""
    connection.execute("UPDATE reservation.dead_letters SET state = 'handled' WHERE state = 'dead'")


def test_a_letter_behind_nothing_is_called_when_partitions_are_taken(
    connection, store, database_url, orders
):
    """A store in which one is stuck heals by itself, whoever holds its partition."""
    with orders.running(database_url):
        park(store, orders)
    strand(connection)
    with orders.running(database_url):
        orders.until_all_are("handled")


def test_a_letter_behind_nothing_is_called_at_a_turn(connection, store, database_url, orders):
    """A running consumer looks for it, as where a person discarded what was before it."""
    with orders.running(database_url):
        park(store, orders)
        orders.turned(1)
        strand(connection)
        orders.until_all_are("handled")
