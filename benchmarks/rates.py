"""A rate over four processes: whether it is kept, and what it costs."""

import statistics
import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from psycopg import Connection

from benchmarks import workload
from benchmarks.groups import PARTITIONS, WORKERS, wait_until_shared
from benchmarks.harness import Bench, Result, benchmark
from benchmarks.limited import LIMIT, QUICK, SLOW
from benchmarks.running import ROOT, Running
from reservation import MessageStore
from reservation.postgres.connection import connect
from reservation.postgres.queries import load_queries
from reservation.store.notifications import set_notices

COMMANDS = "account:command"
COUNT = 20_000
FIRST, LAST = 0.1, 0.9  # of the calls: in between, all processes have some
ROUNDS = 2
KEPT, COST = 0.95, 0.8

_QUERIES = load_queries("benchmarks")


@benchmark
def rates(bench: Bench) -> Iterator[Result]:
    """Handle a backlog with a rate of 1,000 a second over four processes, and without.

    The cost is that for a handler that lasts so long that four processes make about as many calls
    without a rate. So what it loses is not what the rate forbids. Counted are the calls from a
    tenth of the backlog to nine tenths.
    """
    print(
        f"rates: {COUNT:,} deposits, each to an account of its own, with {WORKERS} workers, "
        f"{PARTITIONS} partitions and a rate of {LIMIT:,} a second; the handler lasts "
        f"{QUICK * 1000:g} ms. Then in turns with that rate and without, with a handler that lasts "
        f"{SLOW * 1000:g} ms; the median of {ROUNDS}"
    )
    called = _called(bench, "quick")
    most = max(n + 1 - bisect_left(called, at - 1.0) for n, at in enumerate(called))
    yield Result.rate("rates, calls", _speed(called), f"the rate of {LIMIT:,}", LIMIT, KEPT)
    yield Result(
        "rates, most in a second",
        most,
        "calls",
        f"the rate of {LIMIT:,}",
        round(most / LIMIT, 3),
        2 - KEPT,
        most <= LIMIT * (2 - KEPT),
    )
    pairs = [
        tuple(_speed(_called(bench, app)) for app in ("slow", "unlimited")) for _ in range(ROUNDS)
    ]
    limited, free = (statistics.median(one) for one in zip(*pairs, strict=True))
    yield Result.rate("rates, cost", limited, "the same handler without a rate", free, COST)


def _speed(called: list[float]) -> float:
    first, last = int(len(called) * FIRST), int(len(called) * LAST)
    return (last - first) / (called[last] - called[first])


def _called(bench: Bench, app: str) -> list[float]:
    """Handle a backlog, which is sent at once; return when the handler was called, in order."""
    with bench.database() as url, connect(url, autocommit=True) as connection:
        set_notices(connection, on=True)
        with Running(
            url,
            *("--only", "commands", "--workers", str(WORKERS)),
            *("--partitions", str(PARTITIONS)),
            app=f"benchmarks.limited:{app}",
            app_dir=ROOT,
        ) as running:
            running.started(WORKERS)
            wait_until_shared(connection, COMMANDS, WORKERS)
            sent = workload.deposits(COUNT, COMMANDS, accounts=COUNT)
            workload.write_batches(MessageStore(connection), sent)
            while workload.stored(connection, "account") < COUNT:
                running.check()
                time.sleep(0.2)
        return _calls(connection)


def _calls(connection: Connection[Any]) -> list[float]:
    return [at for (at,) in connection.execute(_QUERIES["called_at"]).fetchall()]
