"""The same work on a store that holds millions of messages already."""

import itertools
from collections.abc import Callable, Iterator

from benchmarks import workload
from benchmarks.harness import Bench, Result, benchmark, rate
from reservation import MessageStore
from reservation.postgres.connection import connect

STORED = 5_000_000
COUNT, KEYS, LONG, SAMPLE = 50_000, 45_000, 200_000, 3_000


# Each gets the address of the store, and a number that makes its categories differ per run.
def _reserve(url: str, run: int) -> float:
    with connect(url, autocommit=True) as connection:
        return workload.reserve(connection, f"field{run}", COUNT, keys=KEYS)


def _reserve_by_function(url: str, run: int) -> float:
    with connect(url, autocommit=True) as connection:
        name = f"function{run}"
        return workload.reserve(connection, name, COUNT, keys=KEYS, key=workload.by_function)


def _write_batches(url: str, run: int) -> float:
    with MessageStore.open(url, max_connections=1) as store:
        return workload.write_batches(store, workload.deposits(COUNT, f"batches{run}:command"))


def _write_single(url: str, run: int) -> float:
    writes = workload.deposits(SAMPLE, f"single{run}:command")
    with MessageStore.open(url, max_connections=1) as store:
        return rate(SAMPLE, lambda: [store.write_batch([write]) for write in writes])


def _read_category(url: str, run: int) -> float:
    with connect(url, autocommit=True) as connection:
        category = f"read{run}:command"
        workload.write_batches(MessageStore(connection), workload.deposits(LONG, category))
        workload.settle(connection)
        return workload.read_category(connection, category, LONG)


WORK: dict[str, Callable[[str, int], float]] = {
    "reserve": _reserve,
    "reserve_by_function": _reserve_by_function,
    "write_batches": _write_batches,
    "write_single": _write_single,
    "read_category": _read_category,
}


@benchmark
def large_store(bench: Bench) -> Iterator[Result]:
    """Do all of it on an empty store and on one of 5,000,000 messages."""
    with bench.database() as empty, bench.database() as large:
        with connect(large, autocommit=True) as connection:
            workload.fill(connection, "fill", STORED)
        best: dict[tuple[str, str], float] = {}
        # In turn, so that other work of the machine slows down both.
        for run, (name, work), url in itertools.product(range(2), WORK.items(), (empty, large)):
            with connect(url, autocommit=True) as connection:
                workload.settle(connection)
            best[name, url] = max(best.get((name, url), 0), work(url, run))
    for name in WORK:
        yield Result.rate(
            f"{name}_of_5,000,000",
            best[name, large],
            "the same on an empty store",
            best[name, empty],
            0.8,
        )
