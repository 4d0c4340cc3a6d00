"""Scheduled messages, and the processes that write them: what they show, and that they may die."""

import random
import time
from datetime import UTC, datetime, timedelta

from tests.apps.unpaid import SENT, Expire, Pay, Place
from tests.store.test_scheduling import PAST, refusing, rows
from tests.support.consuming import until
from tests.support.started import EXAMPLES, Started
from tests.support.watching import Watched

APP = {"app": "tests.apps.unpaid:order", "cwd": EXAMPLES.parent}


def test_metrics_show_what_is_scheduled_and_overdue(connection, store, database_url):
    """A message that the log refuses is logged and counted, and the host goes on beside it."""
    store.write(Place("1"), f"{SENT}-1", after="1h")
    store.write(Place("2"), f"{SENT}-1", at=datetime.now(UTC) - timedelta(minutes=5))
    with refusing(connection, "NEW.type = 'Place'"), Watched(database_url, **APP) as started:

        def figure(name):
            return started.figures().get((f"reservation_scheduled_{name}", "order", SENT), 0)

        assert started.wait_for("scheduled_refused", count=1)["level"] == "warning"
        until(lambda: figure("refused_total") >= 1)
        until(lambda: figure("messages") == 2)
        assert 300 <= figure("overdue_seconds") < 400
        store.write(Pay("3"), f"{SENT}-3", at=PAST)
        started.wait_for("scheduled_written", count=1)
        until(lambda: figure("written_total") == 1)
        assert started.stop() == 0


def test_what_is_scheduled_is_written_once_although_its_process_is_killed(
    store, connection, database_url
):
    """A process that is killed while it schedules and writes leaves nothing out or doubled."""
    kill_at_random(store, connection, database_url, seed=1, count=10, kills=2)


def kill_at_random(store, connection, database_url, *, seed, count, kills):
    """Place orders, and kill the only process that writes what they schedule, again and again."""
    chance = random.Random(seed)
    for n in range(count):
        store.write(Place(str(n)), f"{SENT}-{n}")
        store.write(Expire(f"x{n}"), f"{SENT}-x{n}", after=f"{chance.randrange(1500 * kills)}ms")
    for _ in range(kills):
        with Started(database_url, **APP) as started:
            started.wait_for("consumer_started")
            time.sleep(chance.random() / 2)  # the moment of the death is what is random
            started.stop_group(9)
    with Started(database_url, **APP) as started:
        started.wait_for("consumer_started")
        until(lambda: all_expired(store, 2 * count))
        assert started.stop() == 0
    sent = [m for m in store.read_category(SENT) if m.type == "Expire"]
    assert len(sent) == len({message.id for message in sent}) == 2 * count
    assert len({message.stream_name for message in sent}) == 2 * count
    assert rows(connection) == []


def all_expired(store, count):
    """Return whether so many orders have expired."""
    return sum(m.type == "Expired" for m in store.read_category("order")) == count
