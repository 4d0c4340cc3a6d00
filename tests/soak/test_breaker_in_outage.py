"""An outage of a provider that 10,000 messages meet, at the default figures or faster."""

import random
import time
from contextlib import ExitStack

import pytest

from tests.apps.paying import calls
from tests.processes.test_breakers import (
    PROCESSES,
    STATES,
    WAITING,
    captured,
    send,
    started,
)
from tests.support.consuming import until

PAYMENTS, EACH = 5000, 2


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("seconds", "open_for", "kills"),
    [(20, 0.5, 4), (1200, 30, 5)],
    ids=["seconds", "twenty minutes"],
)
@pytest.mark.parametrize("app", ["payments", "awaited"])
def test_an_outage_makes_few_calls_and_no_dead_letter(
    store, connection, database_url, tmp_path, record_property, app, seconds, open_for, kills
):
    """Then all messages are handled, those of each payment in their order."""
    chance = random.Random(7)
    (tmp_path / "down").touch()
    send(store, range(PAYMENTS), EACH)
    with ExitStack() as stack:

        def start():
            return stack.enter_context(started(database_url, tmp_path, app, f"{open_for}s"))

        running = [start() for _ in range(PROCESSES)]
        until(lambda: calls(tmp_path))
        began = time.monotonic()
        for n in range(kills + 1):
            while time.monotonic() < began + seconds * (n + 1) / (kills + 1):
                time.sleep(0.1)
            if n < kills:
                killed = chance.randrange(PROCESSES)
                running[killed].stop_group(9)
                running[killed] = start()
        assert connection.execute(WAITING).fetchone() == (PAYMENTS * EACH,)
        outage = calls(tmp_path)
        record_property("calls in the outage", len(outage))
        lasted = outage[-1][0] - outage[0][0]
        going_on = PROCESSES * (20 if app == "awaited" else 1)
        assert len(outage) <= 20 + going_on + lasted / open_for + 1
        (tmp_path / "down").unlink()
        began = time.monotonic()
        until(lambda: connection.execute(STATES).fetchall() == [("handled",)])
        record_property("seconds until all were handled", time.monotonic() - began)
    assert list(captured(store).values()) == [[*range(EACH)]] * PAYMENTS
    record_property("calls in all", len(calls(tmp_path)))
