"""Killing the consumers with SIGKILL at random moments, and what must hold after that."""

import random
import threading

import pytest

from bank.invariants import progress
from bank.traffic import in_batches, make_traffic
from reservation import MessageStore
from tests.bank import READS, broken
from tests.processes import Started

pytestmark = pytest.mark.faults

KILLS = 20


def wait_until_drained(connection, consumers):
    """Wait until each consumer has committed the end of its category, commands first."""
    for which, category in zip(("commands", "reserved"), READS, strict=True):
        while progress(connection)[category][0]:
            consumers[which].wait_for("batch_committed")


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_consumer_leaves_nothing_lost_and_nothing_twice(
    connection, store, database_url, seed
):
    """Whichever consumer, whichever moment: after a restart I1 to I8 hold."""
    print(f"seed {seed}")  # noqa: T201  repeats the run
    chance = random.Random(seed)
    victim = chance.choice(["commands", "reserved"])
    traffic = make_traffic(accounts=10, sends=600, seed=seed)
    acknowledged = set()

    def send():
        with MessageStore.open(database_url) as sender:
            for batch in in_batches(traffic, traffic.accounts, 5):
                sender.write_batch(batch)
                acknowledged.update(write.id for write in batch)

    def start(which):
        return Started(database_url, "--only", which, "--batch-size", "20")

    consumers = {which: start(which) for which in ("commands", "reserved")}
    sending = threading.Thread(target=send)
    try:
        sending.start()
        for _ in range(chance.randrange(1, 12)):
            consumers[victim].wait_for("batch_committed")
        threading.Event().wait(chance.uniform(0, 0.02))  # somewhere within the next batches
        consumers[victim].process.kill()
        consumers[victim].process.wait()
        consumers[victim].__exit__()
        consumers[victim] = start(victim)
        sending.join()
        wait_until_drained(connection, consumers)
        for write in traffic.late:
            store.write_batch([write])
            acknowledged.add(write.id)
        wait_until_drained(connection, consumers)
        assert [one.stop() for one in consumers.values()] == [0, 0]
    finally:
        for one in consumers.values():
            one.__exit__()
    assert broken(connection, acknowledged) == {}
