"""Processes that share a category and remember what they have handled."""

import os
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from reservation.strategies import Processed
from tests.apps.once import effects, pay, prepare, till
from tests.support.started import EXAMPLES, Started

ROOT = Path(__file__).parents[2]
HERE = "tests.soak.test_processed_processes"

many = till(Processed(key="pay_id"), name="many")
kept = till(Processed(key="pay_id", keep=timedelta(days=9)), name="many")


@pytest.mark.parametrize("name", ["many", "kept"])
def test_processes_that_share_a_category_handle_each_key_once(
    connection, store, database_url, name
):
    """Processes that share a category handle each key once, whichever gets the reissues."""
    prepare(connection)
    chance = random.Random(7)
    sends = [str(n) for n in range(100)] * 4
    chance.shuffle(sends)
    arguments = [
        "--app-dir",
        str(ROOT),
        "--workers",
        "3",
        "--partitions",
        "16",
        "--batch-size",
        "10",
    ]
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    with Started(database_url, *arguments, app=f"{HERE}:{name}", env=env) as started:
        for n, key in enumerate(sends):
            store.write(pay(key), f"many:command-{n % 17}")
        done = Counter()
        while done.total() < len(sends):
            event = started.wait_for("batch_committed")
            done += Counter({k: event.get(k, 0) for k in ("handled", "duplicate")})
        assert started.stop() == 0
    assert done == Counter(handled=100, duplicate=300)
    assert effects(connection, "many") == Counter(str(n) for n in range(100))
