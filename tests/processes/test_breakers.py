"""Outages of a provider, over several processes that are killed meanwhile."""

import os
import random
from contextlib import ExitStack

import pytest

from reservation import Write
from tests.apps.paying import CAPTURES, Capture, Captured, calls
from tests.support.consuming import until
from tests.support.started import EXAMPLES, Started
from tests.support.watching import Watched

PROCESSES = 3
WAITING = "SELECT count(*) FROM reservation.dead_letters WHERE state IN ('waiting', 'parked')"
STATES = "SELECT DISTINCT state FROM reservation.dead_letters"


def started(database_url, folder, app, open_for, kind=Started):
    """Start a process of the payments."""
    env = os.environ | {"PAYING": str(folder), "PAYING_OPEN_FOR": open_for}
    return kind(
        database_url,
        *("--partitions", str(PROCESSES), "--log-level", "info"),
        app=f"tests.apps.paying:{app}",
        cwd=EXAMPLES.parent,
        env=env,
    )


def send(store, payments, each):
    """Send captures, several for each payment."""
    store.write_batch(
        Write(Capture(f"p{payment}", number), f"{CAPTURES}-p{payment}")
        for number in range(each)
        for payment in payments
    )


def captured(store):
    """Return the numbers of the captures of each payment, in the order of its stream."""
    found = {}
    for event in store.read_category("payment"):
        found.setdefault(event.stream_name, []).append(event.decode(Captured).number)
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("app", ["payments", "awaited"])
def test_an_outage_makes_few_calls_and_no_dead_letter(
    store, connection, database_url, tmp_path, app
):
    """Of 1,000 messages, in twenty pauses and more, with a process killed every five."""
    chance, open_for = random.Random(7), 0.5
    (tmp_path / "down").touch()
    send(store, range(500), 2)
    with ExitStack() as stack:
        running = [
            stack.enter_context(started(database_url, tmp_path, app, f"{open_for}s"))
            for _ in range(PROCESSES)
        ]
        until(lambda: connection.execute(WAITING).fetchone() == (1000,))
        for _ in range(4):
            tried = len(calls(tmp_path))
            killed = chance.randrange(PROCESSES)
            running[killed].stop_group(9)
            running[killed] = stack.enter_context(
                started(database_url, tmp_path, app, f"{open_for}s")
            )
            until(lambda tried=tried: len(calls(tmp_path)) >= tried + 5)
        outage = calls(tmp_path)
        lasted = outage[-1][0] - outage[0][0]
        going_on = PROCESSES * (20 if app == "awaited" else 1)
        assert len(outage) <= 20 + going_on + lasted / open_for + 1
        (tmp_path / "down").unlink()
        send(store, range(500), 1)
        until(lambda: sum(map(len, captured(store).values())) == 1500)
        until(lambda: connection.execute(STATES).fetchall() == [("handled",)])
    assert list(captured(store).values()) == [[0, 1, 0]] * 500
    assert connection.execute("SELECT until FROM reservation.breakers").fetchall() == [(None,)]


def test_a_metric_says_whether_messages_wait(store, database_url, tmp_path):
    """It is there from the beginning, for whoever alerts on it."""
    open_ = ("reservation_breaker_open", "payment", CAPTURES, "Capture")
    with started(database_url, tmp_path, "payments", "100ms", Watched) as watched:
        until(lambda: watched.figures().get(open_) == 0)
        (tmp_path / "down").touch()
        send(store, range(30), 1)
        until(lambda: watched.figure(*open_) == 1)
        (tmp_path / "down").unlink()
        until(lambda: watched.figure(*open_) == 0)


def test_a_process_that_dies_as_it_tries_holds_nobody_up(store, connection, database_url, tmp_path):
    """The attempt is another one's after the pause, and the message is no dead letter at once."""
    (tmp_path / "down").touch()
    send(store, range(30), 1)
    with started(database_url, tmp_path, "payments", "1s") as first:
        first.wait_for("breaker_opened", error="tests.apps.paying.ProviderDownError")
        (tmp_path / "deadly").touch()
        before = len(calls(tmp_path))
        first.wait_for("process_died")
        assert len(calls(tmp_path)) == before + 1
        (tmp_path / "deadly").unlink()
        (tmp_path / "down").unlink()
        until(lambda: sum(map(len, captured(store).values())) == 30)
    assert connection.execute(STATES).fetchall() == [("handled",)]
