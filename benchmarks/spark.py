"""Spark's jobs on the books of a bank, compared with the same answer from PostgreSQL itself."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bank import account
from benchmarks.harness import Bench, Result, benchmark
from benchmarks.ledger import Ledger
from reservation.postgres.connection import connect
from reservation.postgres.queries import load_queries
from spark_jobs.common.result import VIOLATIONS, Report
from spark_jobs.reconcile import in_session, state_of
from spark_jobs.run import Run
from spark_jobs.session.session import spark_session
from spark_jobs.snapshot.snapshot import Snapshot, exported_snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEDGER = load_queries("benchmarks", "ledger.sql")

MESSAGES = int(os.environ.get("BENCH_MESSAGES", "2000000"))
SMALL = 10_000
APP_DIR = Path("examples")
APP = ("bank:account", "--app-dir", str(APP_DIR))
CATEGORIES = ["account:command", "accountTransaction", "account"]


def seconds(work: Callable[[], object]) -> float:
    """Return how long the work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextlib.contextmanager
def _books(bench: Bench, messages: int) -> Iterator[tuple[str, Ledger]]:
    ledger = Ledger.of_messages(messages)
    with bench.database() as url:
        with connect(url, autocommit=True) as connection:
            ledger.fill(connection)
        yield url, ledger


def _run(spark: "SparkSession", url: str, ledger: Ledger, state: Path | None = None) -> float:
    """Reconcile, and compare the findings with the planted ones; return how long it took."""
    found: list[Report] = []
    with exported_snapshot(url) as snapshot:
        run = Run(account, "bank:account", APP_DIR, url, state=state)
        took = seconds(lambda: found.append(_in_session(run, snapshot, spark)))
    counted = Counter({name: found[0].count(name) for name in (*VIOLATIONS, "keyless")})
    planted = Counter({name: ledger.findings()[name] for name in counted})
    assert counted == planted, (counted, planted)
    assert found[0].count("duplicates") == ledger.findings()["duplicates"]
    return took


def _in_session(run: Run, snapshot: Snapshot, spark: "SparkSession") -> Report:
    with state_of(run) as state:
        return in_session(run, snapshot, spark, state)


@contextlib.contextmanager
def _session(url: str) -> "Iterator[SparkSession]":
    """Give a session as the command starts it."""
    with exported_snapshot(url) as snapshot:
        is_small = snapshot.is_small()
    with spark_session(url, is_small=is_small) as spark:
        yield spark


def _at_most(name: str, figure: float, against: str, other: float, bar: float) -> Result:
    ratio = figure / other
    return Result(name, round(figure, 2), "s", against, round(ratio, 2), bar, ratio <= bar)


@benchmark
def spark_reconcile(bench: Bench) -> Iterator[Result]:
    """Reconcile the whole books in a session that did so before, and by one query."""
    with _books(bench, MESSAGES) as (url, ledger), _session(url) as spark:
        with connect(url, autocommit=True) as connection:
            query = min(
                seconds(lambda: connection.execute(_LEDGER["answer"]).fetchall()) for _ in range(2)
            )
        _run(spark, url, ledger)
        again = _run(spark, url, ledger)
        against = f"one query in PostgreSQL, {query:.1f} s"
        yield _at_most("spark_reconcile", again, against, query, 1.1)


@benchmark
def spark_incremental(bench: Bench) -> Iterator[Result]:
    """Reconcile the newest hundredth of the messages, compared with all of them."""
    ledger = Ledger.of_messages(MESSAGES)
    with (
        bench.database() as url,
        connect(url, autocommit=True) as connection,
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        contextlib.ExitStack() as opened,
    ):
        ledger.fill(connection, until=ledger.keys - ledger.keys // 100)
        spark = opened.enter_context(_session(url))
        state = Path(folder) / "state"
        with exported_snapshot(url) as snapshot:
            _in_session(Run(account, "bank:account", APP_DIR, url, state=state), snapshot, spark)
        ledger.go_on(connection, ledger.keys - ledger.keys // 100)
        states = [Path(folder) / f"state-{n}" for n in range(3)]
        for copy in states:
            shutil.copytree(state, copy)
        # The first of each starts up, and is not counted.
        whole = min([_run(spark, url, ledger) for _ in states][1:])
        new = min([_run(spark, url, ledger, copy) for copy in states][1:])
        yield _at_most("spark_incremental", new, f"all of it, {whole:.1f} s", whole, 0.2)


@benchmark
def spark_command(bench: Bench) -> Iterator[Result]:
    """Run the whole command, from the start of Python to its exit, once the machine is prepared."""
    with tempfile.TemporaryDirectory(prefix="bench-") as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        _cli("spark", "prepare", env=environment)
        for name, messages, bar in (("large", MESSAGES, 30), ("small", SMALL, 9)):
            with _books(bench, messages) as (url, _):
                environment["RESERVATION_DATABASE_URL"] = url
                took = seconds(lambda: _cli("reconcile", *APP, env=environment, status=1))
                yield _at_most(
                    f"spark_command_{name}", took, f"{bar} s for {messages:,} messages", bar, 1
                )


@benchmark
def spark_first_state(bench: Bench) -> Iterator[Result]:
    """Run the whole command with a new state, and without one."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        _books(bench, MESSAGES) as (url, _),
    ):
        environment = {
            **os.environ,
            "XDG_CACHE_HOME": f"{folder}/cache",
            "RESERVATION_DATABASE_URL": url,
        }
        _cli("spark", "prepare", env=environment)
        plain, stateful = (
            seconds(partial(_cli, "reconcile", *APP, *options, env=environment, status=1))
            for options in ((), ("--state", f"{folder}/state"))
        )
        yield _at_most("spark_first_state", stateful, f"without a state, {plain:.1f} s", plain, 1.3)


@benchmark
def spark_large(bench: Bench) -> Iterator[Result]:
    """Run the whole command on ten times as much, and look at the memory that it takes."""
    few, many = (_command(bench, messages) for messages in (MESSAGES, 10 * MESSAGES))
    yield _at_most("spark_large", many.took, f"a tenth, {few.took:.1f} s", few.took, 9)
    for name, of in (("driver", "driver"), ("worker", "a worker")):
        most, before = getattr(many, name) / 2**20, getattr(few, name) / 2**20
        yield Result(
            f"spark_large, memory of {of}",
            round(most),
            "MB",
            f"a tenth, {before:.0f} MB",
            round(most / before, 2),
            1.1,
            most / before <= 1.1,
        )


@dataclass
class _Taken:
    """What the command took: seconds, and the most bytes that its processes had in memory.

    Attributes:
        took: from start to exit.
        driver: Python's driver together with Java's.
        worker: the largest of Spark's Python workers.
    """

    took: float = 0.0
    driver: int = 0
    worker: int = 0


def _command(bench: Bench, messages: int) -> _Taken:
    """Reconcile books with the command, and watch its processes."""
    taken = _Taken()
    with _books(bench, messages) as (url, _):
        start = time.perf_counter()
        environment = {**os.environ, "RESERVATION_DATABASE_URL": url}
        with subprocess.Popen(
            [sys.executable, "-m", "cli", "reconcile", *APP],
            env=environment,
            stdout=subprocess.DEVNULL,
        ) as running:
            root = psutil.Process(running.pid)
            while running.poll() is None:
                driver = _resident(root)
                for child in root.children(recursive=True):
                    if _is_java(child):
                        driver += _resident(child)
                    else:
                        taken.worker = max(taken.worker, _resident(child))
                taken.driver = max(taken.driver, driver)
                time.sleep(0.2)
        taken.took = time.perf_counter() - start
        assert running.returncode == 1, "what is planted is found"
    return taken


def _resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0


def _is_java(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name() == "java"
    return False


def _cli(*arguments: str, env: Mapping[str, str], status: int = 0) -> None:
    """Run the command line to its end; planted findings make the status of a report 1."""
    command = [sys.executable, "-m", "cli", *arguments]
    done = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == status
