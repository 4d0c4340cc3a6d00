"""What a message costs consumers that wait for it: round trips, counted, so that they do not grow.

All that a consumer does from the notice to the commit is in the way of the message. After the
commit it waits again without asking the server anything.
"""

import queue
import threading
from collections import Counter

import psycopg
import pytest

from bank import account
from consumers.loop.consuming import consume
from consumers.runtime.observability.logs import Log
from consumers.runtime.stopping import Stop
from reservation.store.notifications import Notices, set_notices
from tests.bank import event_types
from tests.controls import COMMANDS, deposit, open_
from tests.processes import PATIENCE

# Longer than the test may take, so that nobody takes a turn or polls in it.
NEVER = 120.0
COMMAND_CONSUMER, RESERVATION_CONSUMER = "account:command", "accountTransaction"

# The command consumer begins and reads; moves its position, reserves and commits.
# The reservation consumer begins and reads; loads the entity; moves its position, writes and
# commits.
MOST = {COMMAND_CONSUMER: 1, RESERVATION_CONSUMER: 2}


class Consumers:
    """Both consumers of the bank, in threads, and the round trips of each."""

    def __init__(self, database_url, monkeypatch):
        self.exchanges = Counter()
        self._waits = {category: queue.SimpleQueue() for category in MOST}
        self._stops = [Stop(takes_signals=False) for _ in MOST]
        wait, told = psycopg.Connection.wait, Notices._told

        def counted(connection, *arguments, **options):
            self.exchanges[threading.current_thread().name] += 1
            return wait(connection, *arguments, **options)

        def noted(notices, *arguments):
            self._waits[threading.current_thread().name].put(None)
            return told(notices, *arguments)

        monkeypatch.setattr(psycopg.Connection, "wait", counted)
        monkeypatch.setattr(Notices, "_told", noted)
        self._threads = [
            threading.Thread(
                target=consume,
                args=(account, category, database_url, stop),
                kwargs={"batch_size": 1000, "log": Log(account.name, category)},
                name=category,
                daemon=True,
            )
            for category, stop in zip(MOST, self._stops, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, *categories):
        """Wait until each of these consumers has begun to wait once more."""
        for category in categories:
            self._waits[category].get(timeout=PATIENCE)

    def stop(self):
        for stop in self._stops:
            stop.request()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture
def consumers(connection, database_url, monkeypatch):
    """Give both consumers, waiting for notice, with all prepared that they prepare."""
    set_notices(connection, on=True)
    for name in ("loop.consumer.POLL", "loop.consumer.TURN", "group.membership.TURN"):
        monkeypatch.setattr(f"consumers.{name}", NEVER)
    # Nor does a slow machine make a batch long, or a connection late.
    monkeypatch.setattr("consumers.group.heartbeat.INTERVAL", NEVER)
    monkeypatch.setattr("reservation.store.notifications.CONNECT_TIMEOUT", int(PATIENCE))
    consumers = Consumers(database_url, monkeypatch)
    consumers.wait(*MOST)
    yield consumers
    consumers.stop()


def test_a_message_for_idle_consumers_takes_few_round_trips(consumers, store):
    """A message that meets idle consumers takes two and three round trips, and no more."""
    store.write(open_(), COMMANDS)
    consumers.wait(COMMAND_CONSUMER)
    store.write(deposit("d0"), COMMANDS)
    consumers.wait(*MOST)
    for n in range(1, 11):
        consumers.exchanges.clear()
        store.write(deposit(f"d{n}"), COMMANDS)
        consumers.wait(*MOST)
        taken = {category: consumers.exchanges[category] for category in MOST}
        assert all(taken[category] <= most for category, most in MOST.items()), (n, taken)
    assert event_types(store) == ["Opened"] + ["Deposited"] * 11


def test_several_messages_at_once_take_no_more(consumers, store):
    """Messages of one category and entity that are committed together take as many round trips."""
    store.write(open_(), COMMANDS)
    consumers.wait(COMMAND_CONSUMER)
    for n in range(3):
        consumers.exchanges.clear()
        store.write([deposit(f"d{n}-{m}") for m in range(20)], COMMANDS)
        consumers.wait(*MOST)
    taken = {category: consumers.exchanges[category] for category in MOST}
    assert all(taken[category] <= most for category, most in MOST.items()), taken
    assert event_types(store) == ["Opened"] + ["Deposited"] * 60
