"""Processes that share a category: how throughput grows, and how soon one replaces another."""

import statistics
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from psycopg import Connection

from bank.component import account
from bank.messages import Deposit
from benchmarks import workload
from benchmarks.harness import Bench, Result, benchmark
from benchmarks.running import ROOT, Running
from reservation import MessageStore
from reservation.postgres.connection import connect
from reservation.postgres.queries import load_queries
from reservation.store.notifications import set_notices

COMMANDS, RESERVED = "account:command", "accountTransaction"
WORKERS, PARTITIONS = 4, 16
COUNT, SAMPLE = 16_000, 4_000
AT_A_TIME = 100  # as `benchmarks.awaiting` declares it
ROUNDS = 2
KILLS = 5
LIMIT = 5.0  # seconds until another member has handled a message of the killed one

_QUERIES = load_queries("benchmarks")


@benchmark
def workers(bench: Bench) -> Iterator[Result]:
    """Handle deposits that wait 2 ms each for something outside, with one process and with four."""
    print(
        f"workers: {COUNT:,} copies, each to an account of its own, with {WORKERS} workers, and "
        f"{SAMPLE:,} with one; each handler waits 2 ms; {PARTITIONS} partitions, notices on; "
        f"the best of {ROUNDS}"
    )
    # In turn, so that other work of the machine slows down both.
    pairs = [(_handle(bench, SAMPLE, 1), _handle(bench, COUNT, WORKERS)) for _ in range(ROUNDS)]
    single, many = max(single for single, _ in pairs), max(many for _, many in pairs)
    yield Result.rate(f"workers, {WORKERS}", many, "one worker", single, 3.5)


@benchmark
def async_handlers(bench: Bench) -> Iterator[Result]:
    """Handle deposits that wait 2 ms each in one process, with an async handler and without."""
    print(
        f"async_handlers: {COUNT:,} copies, each to an account of its own, with an async handler "
        f"that awaits 2 ms, {AT_A_TIME} at a time, and {SAMPLE:,} with one that sleeps so long; "
        f"one process; the best of {ROUNDS}"
    )
    pairs = [
        (_handle(bench, SAMPLE, 1), _handle(bench, COUNT, 1, app="awaiting")) for _ in range(ROUNDS)
    ]
    one, many = max(one for one, _ in pairs), max(many for _, many in pairs)
    yield Result.rate("async_handlers", many, "a handler that is not async", one, 10)


def _handle(bench: Bench, count: int, workers: int, app: str = "waiting") -> float:
    """Handle copies with waiting workers; return copies a second."""
    with bench.database() as url, connect(url, autocommit=True) as connection:
        sent = workload.deposits(count, COMMANDS, accounts=count)
        workload.write_batches(MessageStore(connection), sent)
        set_notices(connection, on=True)
        with Running(
            url,
            *("--only", "reserved", "--workers", str(workers)),
            *("--partitions", str(PARTITIONS)),
            app=f"benchmarks.{app}:account",
            app_dir=ROOT,
        ) as running:
            running.started(workers)
            wait_until_shared(connection, RESERVED, workers)
            start = time.time()
            workload.consume(connection, account, COMMANDS, count)
            end = running.reached(RESERVED, count).timestamp()
    return count / (end - start)


@benchmark
def takeover(bench: Bench) -> Iterator[Result]:
    """Kill one of two members, and wait for an event of one of its accounts."""
    print(f"takeover: SIGKILL of one of two idle members that poll, {KILLS} times; the longest")
    seconds = []
    with bench.database() as url, connect(url, autocommit=True) as connection:
        arguments = ("--only", "reserved", "--partitions", str(PARTITIONS))
        with Running(url, "--only", "commands"), Running(url, *arguments) as lasting:
            lasting.started()
            for number in range(KILLS):
                with Running(url, *arguments) as killed:
                    killed.started()
                    wait_until_shared(connection, RESERVED, 2)
                    worker = killed.worker
                    its_own = _account_of(connection, worker.pid, number)
                    killed.process.kill()
                    worker.kill()
                    start = time.perf_counter()
                    command = Deposit("d1", f"{its_own}", Decimal("10.50"), workload.TIME)
                    MessageStore(connection).write(command, f"{COMMANDS}-{its_own}")
                    while MessageStore(connection).stream_version(f"account-{its_own}") < 0:
                        time.sleep(0.002)
                    seconds.append(time.perf_counter() - start)
    longest = max(seconds)
    yield Result(
        "takeover",
        round(longest, 2),
        f"s, median {statistics.median(seconds):.2f}",
        f"the limit of {LIMIT:g} s",
        round(longest / LIMIT, 2),
        1.0,
        longest <= LIMIT,
    )


def wait_until_shared(connection: Connection[Any], category: str, members: int) -> None:
    """Wait until every partition is held, in equal shares by the given number of members."""
    share = PARTITIONS // members
    names = {"category": category}
    while connection.execute(_QUERIES["shares"], names).fetchall() != [(share,)] * members:
        time.sleep(0.02)


def _account_of(connection: Connection[Any], process: int, number: int) -> int:
    """Return the n-th account whose copies the process has to handle."""
    parameters = {"process": str(process), "partitions": PARTITIONS, "first": number * 1000}
    return int(connection.execute(_QUERIES["account_of"], parameters).fetchall()[0][0])
