"""The handler of the page on external calls, in processes that are killed, with a real provider."""

import json
import random
from bisect import bisect_left
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from reservation import Write
from tests.support.consuming import until
from tests.support.pages import ROOT, blocks
from tests.support.provider import Provider
from tests.support.started import Started

PAYMENTS, LIMIT, TIMEOUT = 200, 20, 0.6
# A process may be held up between the time of a call and the call, and the next one is not.
LATE = 6
STATES = "SELECT DISTINCT state FROM reservation.dead_letters"
OPEN = "SELECT count(*) FROM reservation.breakers WHERE until IS NOT NULL"
HANDLED = "SELECT count(*) FROM message_store.messages WHERE type = 'Captured'"
TIMES = {
    'open_for="30s"': 'open_for="1s"',
    'first="1s"': 'first="100ms"',
    'most="10m"': 'most="1s"',
}


@dataclass(frozen=True)
class Capture:
    payment_id: str
    cents: int


def written(folder, address):
    """Write the page's first example as a module, with shorter times, for a provider."""
    text = blocks(ROOT / "docs" / "how-to" / "call-an-external-api.md", "python")[0].text
    replaced = {
        **TIMES,
        "https://provider.example": address,
        "timeout=5": f"timeout={TIMEOUT}",
    }
    for before, after in replaced.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    (folder / "payments_of_page.py").write_text(text)


@pytest.mark.timeout(300)
def test_calls_are_made_at_least_once_and_take_effect_once(
    store, connection, database_url, tmp_path
):
    """The provider is slow, fails, answers too late and goes away, and processes are killed."""
    chance = random.Random(3)
    store.write_batch(Write(Capture(f"p{n}", n), f"payment:command-p{n}") for n in range(PAYMENTS))
    with Provider(late=2 * TIMEOUT) as provider, ExitStack() as stack:
        written(tmp_path, provider.address)

        def start():
            return stack.enter_context(
                Started(
                    database_url,
                    *("--partitions", "3", "--log-level", "error", "--app-dir", str(tmp_path)),
                    app="payments_of_page:payments",
                    cwd=tmp_path,
                )
            )

        running = [start() for _ in range(3)]
        for share in (1, 2, 3):
            made = PAYMENTS * share // 5
            until(lambda made=made: len(provider.charges) >= made)
            killed = chance.randrange(3)
            running[killed].stop_group(9)
            running[killed] = start()
            if share == 2:
                provider.go_away()
                until(lambda: connection.execute(OPEN).fetchone() == (1,))
                provider.come_back()
        until(lambda: connection.execute(HANDLED).fetchone() == (PAYMENTS,))
        until(lambda: connection.execute(STATES).fetchall() in ([], [("handled",)]))
        assert [one.stop() for one in running] == [0, 0, 0]
    assert all(provider.answers.values()), provider.answers
    assert len(provider.charges) == PAYMENTS
    events = [store.read_stream(f"payment-p{n}") for n in range(PAYMENTS)]
    assert {json.loads(event.data)["receipt"] for (event,) in events} == provider.charges
    called = sorted(at for at, _ in provider.calls)
    most = max(n + 1 - bisect_left(called, at - 1.0) for n, at in enumerate(called))
    assert most <= LIMIT + LATE
