"""The whole pattern beside what other projects do with as many messages."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.harness import Bench, Result, benchmark
from benchmarks.peers import environment
from benchmarks.peers.drain import drain
from benchmarks.whole import COUNT, through_consumers

TURNS = 3


@dataclass(frozen=True, slots=True)
class Case:
    """A peer with its settings.

    Attributes:
        peer: the module of its worker.
        package: its name in the package index.
        count: how many messages; fewer for the slower ones.
        setting: the size of a batch, or the concurrency.
        processes: how many workers.
        description: the settings, in words.
    """

    peer: str
    package: str
    count: int
    setting: int
    processes: int
    description: str


CASES = (
    Case("pgqueuer", "pgqueuer", COUNT, 100, 1, "batches of 100"),
    Case("pgqueuer", "pgqueuer", COUNT, 1_000, 1, "batches of 1,000"),
    Case("pgqueuer", "pgqueuer", COUNT, 1_000, 2, "batches of 1,000, two workers"),
    Case("procrastinate", "procrastinate", 1_000, 1, 1, "one job at a time"),
    Case("procrastinate", "procrastinate", 1_000, 10, 2, "concurrency 10, two workers"),
    Case("message_db", "message-db-py", 2_000, 1_000, 1, "batches of 1,000"),
    Case("eventsourcing", "eventsourcing", 1_000, 0, 1, "its projection runner"),
)


@benchmark
def peers(bench: Bench) -> Iterator[Result]:
    """Drain no-op jobs, or the nearest to it, with each peer, in turns with the whole pattern."""
    if not environment.install():
        return
    ours: list[float] = []
    rates: dict[Case, list[float]] = {case: [] for case in CASES}
    for _ in range(TURNS):
        ours.append(through_consumers(bench))
        for case in CASES:
            rate = drain(bench, case.peer, case.count, case.setting, processes=case.processes)
            rates[case].append(rate)
    whole = statistics.median(ours)
    for case in CASES:
        theirs = statistics.median(rates[case])
        against = f"{case.package} {environment.version(case.package)}, {case.description}"
        yield Result.rate("peers", whole, f"{against}: {theirs:,.0f}/s", theirs, 1.0)
