"""Writers of one category, each a process, on a disk whose flushes take 2 ms longer and on another.

They are compared with writers that hold the lock of the category through the flush.
"""

import dataclasses
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Mapping
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier

from benchmarks import workload
from benchmarks.harness import Bench, Disk, Result, bench_on, benchmark
from benchmarks.slow_disk import compiler
from reservation import MessageStore, Write
from reservation.store.writing.batch import WriteBatch

TURNS, SECONDS = 3, 2.0
# How many writers there are on each disk, and the ratio to be reached.
BARS: Mapping[Disk, Mapping[int, float]] = {
    "slow": {1: 0.9, 8: 3.0, 32: 4.0},
    "fast": {1: 0.9, 8: 0.9},
}

_processes = multiprocessing.get_context("fork")


@benchmark
def contended_writes(_: Bench) -> Iterator[Result]:
    """Let 1, 8 and 32 processes write to one category, in turns with and without early release."""
    if compiler() is None:
        print("contended_writes needs a C compiler, for a slow disk; there is none")
        return
    for disk, bars in BARS.items():
        with bench_on(disk) as own:
            for writers, bar in bars.items():
                early, held = _rates(own, writers)
                name = f"contended_writes, {writers}, {disk} disk"
                yield Result.rate(name, early, "the lock held through the flush", held, bar)


def _rates(bench: Bench, writers: int) -> tuple[float, float]:
    """Return how many messages a second are written with early release and without it."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(TURNS):
        for early, found in rates.items():
            with bench.database() as url:
                found.append(_rate(url, writers, early))
    return statistics.median(rates[True]), statistics.median(rates[False])


def _rate(url: str, writers: int, early: bool) -> float:
    start = _processes.Barrier(writers)
    counts: SimpleQueue[int] = _processes.SimpleQueue()
    processes = [
        _processes.Process(target=_write, args=(url, early, start, counts)) for _ in range(writers)
    ]
    for process in processes:
        process.start()
    total = sum(counts.get() for _ in processes)
    for process in processes:
        process.join()
    return total / SECONDS


def _write(url: str, early: bool, start: Barrier, counts: "SimpleQueue[int]") -> None:
    writes = workload.deposits(workload.BATCH, "account:command")
    with MessageStore.open(url, max_connections=1) as store:
        _write_one(store, writes[0], early)
        start.wait()
        count, end = 0, time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            _write_one(store, writes[count % len(writes)], early)
            count += 1
        counts.put(count)


def _write_one(store: MessageStore, write: Write, early: bool) -> None:
    statement = WriteBatch([write], store._max_bytes).statement()
    store._run(statement if early else dataclasses.replace(statement, committing=None))
