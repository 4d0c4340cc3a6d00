"""Spark's jobs on the books of a bank, held against the same answer from PostgreSQL itself."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bank import account
from benchmarks.harness import Bench, Result, benchmark
from benchmarks.ledger import Ledger
from reservation.queries import load_queries
from reservation.store.connection import connect
from spark_jobs.result import VIOLATIONS, Report
from spark_jobs.run import Run, in_session
from spark_jobs.session import spark_session
from spark_jobs.snapshot import exported_snapshot
from spark_jobs.source import MessageStoreSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEDGER = load_queries("benchmarks", "ledger.sql")

MESSAGES = int(os.environ.get("BENCH_MESSAGES", "2000000"))
SMALL = 10_000
APP_DIR = Path("examples")
APP = ("bank:account", "--app-dir", str(APP_DIR))


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
    """Reconcile, and hold what is found to what is planted; return how long it took."""
    found: list[Report] = []
    with exported_snapshot(url) as snapshot:
        run = Run(account, "bank:account", APP_DIR, url, state=state)
        took = seconds(lambda: found.append(in_session(run, snapshot, spark)))
    counted = Counter({name: found[0].count(name) for name in (*VIOLATIONS, "keyless")})
    planted = Counter({name: ledger.findings()[name] for name in counted})
    assert counted == planted, (counted, planted)
    assert found[0].count("duplicates") == ledger.findings()["duplicates"]
    return took


def _at_most(name: str, figure: float, against: str, other: float, bar: float) -> Result:
    ratio = figure / other
    return Result(name, round(figure, 2), "s", against, round(ratio, 2), bar, ratio <= bar)


@benchmark
def spark_reconcile(bench: Bench) -> Iterator[Result]:
    """Reconcile the whole books, in a session that did so before, and by one query."""
    with _books(bench, MESSAGES) as (url, ledger), spark_session(url) as spark:
        with connect(url, autocommit=True) as connection:
            query = min(
                seconds(lambda: connection.execute(_LEDGER["answer"]).fetchall()) for _ in range(2)
            )
        _run(spark, url, ledger)
        again = _run(spark, url, ledger)
        against = f"one query in PostgreSQL, {query:.1f} s"
        yield _at_most("spark_reconcile", again, against, query, 2)
        spark.dataSource.register(MessageStoreSource)
        read = (
            spark.read.format("message_store")
            .option("categories", '["account:command", "accountTransaction", "account"]')
            .load()
        )
        took = seconds(lambda: read.write.format("noop").mode("overwrite").save())
        print(f"spark_read: {MESSAGES / took:,.0f} messages/s, all columns")


@benchmark
def spark_incremental(bench: Bench) -> Iterator[Result]:
    """Reconcile what is new, one in a hundred, against all of it."""
    ledger = Ledger.of_messages(MESSAGES)
    with (
        bench.database() as url,
        connect(url, autocommit=True) as connection,
        spark_session(url) as spark,
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
    ):
        ledger.fill(connection, until=ledger.keys - ledger.keys // 100)
        state = Path(folder) / "state"
        with exported_snapshot(url) as snapshot:
            in_session(Run(account, "bank:account", APP_DIR, url, state=state), snapshot, spark)
        ledger.go_on(connection, ledger.keys - ledger.keys // 100)
        _run(spark, url, ledger)
        whole = _run(spark, url, ledger)
        new = _run(spark, url, ledger, state)
        yield _at_most("spark_incremental", new, f"all of it, {whole:.1f} s", whole, 0.25)


@benchmark
def spark_command(bench: Bench) -> Iterator[Result]:
    """Run the whole command, from the start of Python to its exit, once the machine is prepared."""
    with tempfile.TemporaryDirectory(prefix="bench-") as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        _cli("spark", "prepare", env=environment)
        for name, messages, bar in (("large", MESSAGES, 30), ("small", SMALL, 15)):
            with _books(bench, messages) as (url, _):
                environment["RESERVATION_DATABASE_URL"] = url
                took = seconds(lambda: _cli("reconcile", *APP, env=environment, status=1))
                yield _at_most(
                    f"spark_command_{name}", took, f"{bar} s for {messages:,} messages", bar, 1
                )


def _cli(*arguments: str, env: Mapping[str, str], status: int = 0) -> None:
    """Run the command line to its end; what is planted makes the status of a report 1."""
    command = [sys.executable, "-m", "cli", *arguments]
    done = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == status
