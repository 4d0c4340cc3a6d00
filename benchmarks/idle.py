"""Idle consumers: how soon they act on a message, and what they ask while there is none."""

import contextlib
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from queue import SimpleQueue
from typing import Any

from psycopg import Connection

from bank.messages import Deposit
from benchmarks.harness import Bench, Result, benchmark
from benchmarks.running import Running
from benchmarks.workload import TIME
from reservation import MessageStore, Write
from reservation.postgres.connection import connect
from reservation.postgres.queries import load_queries
from reservation.store.notifications import Notices, set_notices

MESSAGES, WARM_UP = 300, 20
LONGEST_PAUSE = 0.1  # seconds between two messages, each of its own length
LATENCY = {50: 10.0, 99: 50.0}  # milliseconds that the percentiles may take
# How many times two commits and two notifications the median may take.
MOST_TIMES = 2.5
CONSUMERS = 2
WATCHED = 30.0  # seconds
SETTLED = 11.0  # seconds: an idle session reports its statistics after 10 at the latest
ASKED = 1.0  # transactions a second of each consumer

_QUERIES = load_queries("benchmarks")


@benchmark
def idle_latency(bench: Bench) -> Iterator[Result]:
    """Send deposits one at a time to idle consumers and wait for their events; then send nothing.

    The event is seen by who waits for notice of it, which takes a part of a millisecond more than
    the handler's commit. In turns with the deposits, two commits and two notifications of
    PostgreSQL alone are measured: no less is needed, because both consumers commit once and each
    waits for a notification.
    """
    print(
        f"idle_latency: notices on; {MESSAGES} deposits, each from the sender's commit to its "
        f"event being seen, with pauses of up to {LONGEST_PAUSE} seconds"
    )
    with (
        bench.database() as url,
        bench.database() as other_url,  # whose notifications wake no consumer up
        connect(url, autocommit=True) as connection,
    ):
        set_notices(connection, on=True)
        with Running(url) as running, _alone(other_url) as alone:
            running.started(CONSUMERS)
            delays, needed = _delays(url, connection, alone)
            asked = asked_while_idle(connection) / CONSUMERS
    points = statistics.quantiles(delays[WARM_UP:], n=100)
    for at, limit in LATENCY.items():
        yield _result(f"idle_latency, p{at}", points[at - 1] * 1000, "ms", limit)
    median, least = points[49] * 1000, statistics.median(needed[WARM_UP:]) * 1000
    ratio = round(median / least, 2)
    against = f"two commits and two notifications, {least:.2f} ms"
    yield Result(
        "idle_latency, p50", round(median, 2), "ms", against, ratio, MOST_TIMES, ratio <= MOST_TIMES
    )
    yield _result("idle_queries", asked, "transactions/s of each consumer", ASKED)


@contextlib.contextmanager
def _alone(url: str) -> Iterator[Callable[[], float]]:
    """Give a function that returns how many seconds two commits and two notifications take."""
    woken: SimpleQueue[float] = SimpleQueue()
    with connect(url) as writing, connect(url, autocommit=True) as listening:
        writing.execute("CREATE TABLE public.written (data text)")
        writing.commit()
        listening.execute("LISTEN written")

        def listen() -> None:
            for notice in listening.notifies():
                woken.put(time.perf_counter())
                if notice.payload == "end":
                    return

        def commit() -> float:
            writing.execute("INSERT INTO public.written VALUES ('as long as a short message')")
            start = time.perf_counter()
            writing.commit()
            return time.perf_counter() - start

        def notify(payload: str = "") -> float:
            writing.execute("SELECT pg_notify('written', %s)", [payload])
            start = time.perf_counter()
            writing.commit()  # which writes nothing, so it is not flushed
            return woken.get() - start

        thread = threading.Thread(target=listen)
        thread.start()
        yield lambda: commit() + notify() + commit() + notify()
        notify("end")
        thread.join()


def _delays(
    url: str, connection: Connection[Any], alone: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Return for each message how many seconds it took from its commit to its event.

    And before each how many seconds ``alone`` took.
    """
    delays, needed = [], []
    chance = random.Random(1)
    with connect(url) as sender, Notices(connection, url, "account") as notices:
        for n in range(WARM_UP + MESSAGES):
            time.sleep(chance.uniform(0, LONGEST_PAUSE))
            needed.append(alone())
            time.sleep(chance.uniform(0, LONGEST_PAUSE))
            while notices.wait(0):
                pass
            command = Deposit(f"d{n}", f"{n}", Decimal("10.50"), TIME)
            MessageStore(sender).write_batch([Write(command, f"account:command-{n}")])
            sender.commit()
            start = time.perf_counter()
            while MessageStore(connection).stream_version(f"account-{n}") < 0:
                notices.wait(1)
            delays.append(time.perf_counter() - start)
    return delays, needed


def asked_while_idle(connection: Connection[Any]) -> float:
    """Return how many transactions a second the database has while nobody sends anything."""
    time.sleep(SETTLED)
    before, start = _transactions(connection), time.perf_counter()
    time.sleep(WATCHED)
    after, end = _transactions(connection), time.perf_counter()
    return (after - before) / (end - start)


def _transactions(connection: Connection[Any]) -> int:
    return int(connection.execute(_QUERIES["transactions"]).fetchall()[0][0])


def _result(name: str, figure: float, unit: str, limit: float) -> Result:
    ratio = figure / limit
    against = f"the limit of {limit:g}"
    return Result(name, round(figure, 2), unit, against, round(ratio, 2), 1.0, ratio <= 1)
