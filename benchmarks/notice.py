"""What notices of new messages cost eight concurrent writers, and how soon a reader wakes up."""

import contextlib
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from multiprocessing.connection import Connection as Pipe
from typing import Any

from psycopg import Connection, sql

from bank.messages import Deposit
from benchmarks.harness import Bench, Result, benchmark, rate
from benchmarks.workload import TIME
from reservation import MessageStore, Write
from reservation.postgres.connection import connect
from reservation.store.notifications import Notices, set_notices

WRITERS = 8
MESSAGES = 60  # of each writer in a round
WARM_UP = 10  # before each round: a trigger that came or went makes plans anew
ROUNDS = 16
WAKE_UPS = 300

# What is often done: notify at every write, without asking whether somebody waits.
ALWAYS = """
CREATE FUNCTION public.always() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify(reservation.notice_channel(message_store.category(stream_name)), '')
  FROM written;
  RETURN NULL;
END
$$;
"""
ALWAYS_ON = """
CREATE TRIGGER always AFTER INSERT ON message_store.messages
REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION public.always()
"""
ALWAYS_OFF = "DROP TRIGGER IF EXISTS always ON message_store.messages"


@benchmark
def notice_one_category(bench: Bench) -> Iterator[Result]:
    """Write single messages with eight processes, all into one category."""
    yield from _compare(bench, "notice_one_category", ["account:command"] * WRITERS)


@benchmark
def notice_own_categories(bench: Bench) -> Iterator[Result]:
    """Write single messages with eight processes, each into a category of its own."""
    yield from _compare(
        bench, "notice_own_categories", [f"account{n}:command" for n in range(WRITERS)]
    )


@benchmark
def notice_wake_up(bench: Bench) -> Iterator[Result]:
    """Wait for notice of one message after another."""
    with (
        bench.database() as url,
        connect(url, autocommit=True) as reader,
        connect(url) as connection,
        Notices(reader, url, "account:command") as notices,
    ):
        set_notices(reader, True)
        notices.wait(0)
        flushes, delays = [], []
        for n in range(WAKE_UPS):
            MessageStore(connection).write_batch([_write("account:command", f"{n}")])
            woken: list[float] = []
            ready = threading.Event()
            thread = threading.Thread(target=_note_wake_up, args=(notices, ready, woken))
            thread.start()
            ready.wait()
            start = time.perf_counter()
            connection.commit()
            flushes.append(time.perf_counter() - start)
            thread.join()
            delays.append(woken[0] - start)
    for at, delay, flush in zip((50, 99), _percentiles(delays), _percentiles(flushes), strict=True):
        name = f"notice_wake_up, p{at}"
        ratio = round(delay / flush, 2)
        yield Result(
            name, round(delay * 1000, 2), "ms", "the commit itself", ratio, 3.0, ratio <= 3.0
        )


def _note_wake_up(notices: Notices, ready: threading.Event, woken: list[float]) -> None:
    ready.set()
    notices.wait(60)
    woken.append(time.perf_counter())


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    points = statistics.quantiles(seconds, n=100)
    return points[49], points[98]


def _compare(bench: Bench, name: str, categories: Sequence[str]) -> Iterator[Result]:
    """Take turns, and compare within each turn, because the machine may have other work to do."""
    with bench.database() as url, connect(url, autocommit=True) as connection:
        connection.execute(ALWAYS.encode())
        set_notices(connection, False)  # a new store gives them
        kinds: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
            "no trigger": contextlib.nullcontext,
            "always notifying": lambda: _always(connection),
            "nobody waiting": lambda: _ours(connection),
            "all waiting": lambda: _ours(connection, url, categories),
        }
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        with _writers(url, categories) as write:
            for n in range(ROUNDS):
                order = list(kinds)
                for kind in order[n % 4 :] + order[: n % 4]:
                    with kinds[kind]():
                        write(WARM_UP)
                        rates[kind].append(rate(WRITERS * MESSAGES, lambda: write(MESSAGES)))
    without = rates["no trigger"]
    for kind, bar in (("always notifying", 0.0), ("nobody waiting", 0.95), ("all waiting", 0.0)):
        ratio = statistics.median(a / b for a, b in zip(rates[kind], without, strict=True))
        figure = statistics.median(rates[kind])
        yield Result.rate(f"{name}, {kind}", figure, "no trigger", figure / ratio, bar)


@contextlib.contextmanager
def _always(connection: Connection[Any]) -> Iterator[None]:
    connection.execute(ALWAYS_ON)
    yield
    connection.execute(ALWAYS_OFF)


@contextlib.contextmanager
def _ours(
    connection: Connection[Any], url: str = "", categories: Sequence[str] = ()
) -> Iterator[None]:
    """Switch notices on, with a reader that waits for each of the categories all the time."""
    set_notices(connection, True)
    with contextlib.ExitStack() as stack:
        for category in set(categories):
            listening = stack.enter_context(connect(url, autocommit=True))
            rows = listening.execute("SELECT reservation.notice_channel(%s)", [category])
            channel = sql.Identifier(rows.fetchall()[0][0])
            listening.execute(sql.SQL("LISTEN {}").format(channel))
            listening.execute("SELECT reservation.expect_notice(%s)", [category])
        yield
    set_notices(connection, False)


@contextlib.contextmanager
def _writers(url: str, categories: Sequence[str]) -> Iterator[Callable[[int], None]]:
    """Start the processes, and yield a function that lets each write its messages."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for n, category in enumerate(categories):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=_work, args=(theirs, url, category, n)))
        processes[-1].start()
        pipes.append(ours)

    def write(count: int) -> None:
        for pipe in pipes:
            pipe.send(count)
        for pipe in pipes:
            pipe.recv()

    yield write
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(0)
        process.join()


def _work(pipe: Pipe, url: str, category: str, writer: int) -> None:
    number = 0
    with connect(url, autocommit=True) as connection:
        store = MessageStore(connection)
        while count := pipe.recv():
            for _ in range(count):
                number += 1
                store.write_batch([_write(category, f"{writer}-{number}")])
            pipe.send(True)


def _write(category: str, key: str) -> Write:
    return Write(Deposit(key, key, Decimal("10.50"), TIME), f"{category}-{key}")
