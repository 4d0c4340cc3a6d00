"""Writers of one category.

Those of `contended_writes`, each a process, on a disk whose flushes take 2 ms longer and on
another, are compared with writers that hold the lock of the category through the flush. That of
`open_transaction` waits for a transaction that has written to the category and goes on.
"""

import dataclasses
import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier

from psycopg import conninfo
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

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

# How long a transaction works, in seconds, and which part of that another writer may wait.
WORK, ROUNDS = 0.05, 100
WAITS: Mapping[str, tuple[bool, str, float]] = {
    "message first": (True, "account:command-2", 1.2),
    "message last": (False, "account:command-2", 0.2),
    "message first, another category": (True, "transfer:command-2", 0.2),
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


@benchmark
def open_transaction(bench: Bench) -> Iterator[Result]:
    """Write while a session of SQLAlchemy that has written works for 50 ms, and commits."""
    with bench.database() as url, MessageStore.open(url) as store:
        engine = create_engine("postgresql+psycopg://", connect_args=conninfo.conninfo_to_dict(url))
        for name, (is_first, stream, bar) in WAITS.items():
            delays = [_delay(engine, store, stream, is_first) for _ in range(ROUNDS)]
            median, ratio = statistics.median(delays), statistics.median(delays) / WORK
            yield Result(
                f"open_transaction, {name}",
                round(median * 1000, 1),
                "ms",
                f"the {WORK * 1000:.0f} ms of the transaction",
                round(ratio, 2),
                bar,
                ratio <= bar,
            )
        engine.dispose()


def _delay(engine: Engine, store: MessageStore, stream: str, is_first: bool) -> float:
    """Return how long a write takes that begins with the work of an open transaction."""
    (message, other) = (write.message for write in workload.deposits(2, "account:command"))
    works = threading.Event()

    def work() -> None:
        with Session(engine) as session, session.begin():
            if is_first:
                MessageStore(session).write(message, "account:command-1")
            works.set()
            time.sleep(WORK)
            if not is_first:
                MessageStore(session).write(message, "account:command-1")

    thread = threading.Thread(target=work)
    thread.start()
    works.wait()
    start = time.perf_counter()
    store.write(other, stream)
    delay = time.perf_counter() - start
    thread.join()
    return delay
