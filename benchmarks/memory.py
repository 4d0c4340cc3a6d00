"""How much memory the consumers take while they work through a long backlog."""

import time
from collections.abc import Iterator

from benchmarks import workload
from benchmarks.harness import Bench, Result, benchmark
from benchmarks.running import Running
from reservation.postgres.connection import connect

BACKLOG, HANDLED, WARM_UP = 1_000_000, 200_000, 20_000
LIMIT = 120.0  # MB of each consumer
GROWTH = 1.1  # of the most in the second half beside the most in the first
SAMPLED = 0.05  # seconds
READS = {"commands": "account:command", "reserved": "accountTransaction"}


@benchmark
def memory(bench: Bench) -> Iterator[Result]:
    """Sample the resident memory of each consumer from the 20,000th to the 200,000th message."""
    print(
        f"memory: a backlog of {BACKLOG:,} deposits to 10,000 accounts, of which each consumer "
        f"handles {HANDLED:,} or more in batches of 1,000"
    )
    with bench.database() as url, connect(url, autocommit=True) as connection:
        workload.fill(connection, "fill_commands", BACKLOG)
        workload.settle(connection)
        with (
            Running(url, "--only", "commands") as commands,
            Running(url, "--only", "reserved") as reserved,
        ):
            samples = _sample({"commands": commands, "reserved": reserved})
    for which, taken in samples.items():
        half = len(taken) // 2
        before, after = max(taken[:half]), max(taken[half:])
        name = f"memory, {which}"
        yield _result(name, max(taken), f"the limit of {LIMIT:.0f} MB", LIMIT, 1.0)
        yield _result(f"{name}, second half", after, "the first half", before, GROWTH)


def _sample(consumers: dict[str, Running]) -> dict[str, list[float]]:
    """Return the resident memory of each consumer, in MB, one sample after another."""
    for consumer in consumers.values():
        consumer.started()
    processes = {which: consumer.worker for which, consumer in consumers.items()}
    samples: dict[str, list[float]] = {which: [] for which in consumers}
    done = dict.fromkeys(consumers, 0)
    while min(done.values()) < HANDLED:
        time.sleep(SAMPLED)
        for which, consumer in consumers.items():
            consumer.check()
            done[which] = consumer.read(READS[which])
            if WARM_UP <= done[which] < BACKLOG:
                samples[which].append(processes[which].memory_info().rss / 2**20)
    return samples


def _result(name: str, figure: float, against: str, other: float, bar: float) -> Result:
    ratio = figure / other
    return Result(name, round(figure, 1), "MB", against, round(ratio, 2), bar, ratio <= bar)
