"""Killing processes with SIGKILL, at random moments and at each step, and what must hold then."""

import itertools
import random
import threading

import pytest

from bank.invariants import progress
from bank.traffic import make_traffic
from tests.apps.bank import READS, RESERVED, broken, wait_until_drained
from tests.soak.sending import Sender
from tests.support.chance import seeds
from tests.support.proxy import Proxy
from tests.support.started import PATIENCE, Forked, Started


@pytest.mark.parametrize("seed", seeds(10))
@pytest.mark.parametrize("victim", ["host", "worker"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_process_leaves_nothing_lost_and_nothing_twice(
    connection, database_url, workers, victim, seed
):
    """Whichever process is killed at whichever moment, I1 to I8 hold."""
    chance = random.Random(f"{workers} {victim} {seed}")
    arguments = (
        database_url,
        "--batch-size",
        "20",
        "--workers",
        str(workers),
        "--partitions",
        "16",
    )
    traffic = make_traffic(accounts=10, sends=600, seed=seed)
    with Sender(database_url, traffic) as sender, Started(*arguments) as started:
        for _ in range(2 * workers):
            started.wait_for("consumer_started")
        for _ in range(chance.randrange(1, 12)):
            started.wait_for("batch_committed")
        threading.Event().wait(chance.uniform(0, 0.02))  # somewhere within the next batches
        if victim == "host":
            started.process.kill()
        else:
            chance.choice(started.workers).kill()
            started.wait_for("process_died", how="by signal 9")
        with Started(*arguments) if victim == "host" else started as running:
            sender.finish()
            wait_until_drained(connection, running)
            sender.send_late()
            wait_until_drained(connection, running)
            assert running.stop() == 0
    assert broken(connection, sender.acknowledged) == {}


@pytest.mark.parametrize("category", READS)
def test_a_consumer_may_be_killed_at_each_of_its_requests(connection, database_url, category):
    """A consumer killed at any request to the server leaves every effect done once."""
    traffic = make_traffic(accounts=5, sends=300, seed=1)
    with Sender(database_url, traffic, 50) as sender, Proxy(database_url) as proxy:
        sender.finish()
        if category == RESERVED:
            with Started(database_url, "--only", "commands") as commands:
                wait_until_drained(connection, commands, categories=["account:command"])
                assert commands.stop() == 0
        for requests in itertools.count():
            before = progress(connection)[category][0]
            proxy.hold(requests)
            consumer = Forked(proxy.address, category, batch_size=2)
            assert proxy.happened.wait(PATIENCE)
            assert consumer.kill()
            proxy.drop()
            # After a kill the batch is first handled one by one.
            if before - progress(connection)[category][0] > 2:
                break
        assert requests > 10
        with Started(database_url) as started:
            wait_until_drained(connection, started)
            assert started.stop() == 0
    assert broken(connection, sender.acknowledged) == {}
