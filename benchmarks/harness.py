"""Running benchmarks: a database for each, rates, and the results as a table and as JSON."""

import contextlib
import dataclasses
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from psycopg import conninfo, sql
from rich.console import Console
from rich.table import Table

from benchmarks.slow_disk import inherited, slow_disk
from reservation.admin import install
from reservation.postgres.connection import connect
from reservation.postgres.embedded import start_embedded

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Result:
    """One figure beside what it is compared with.

    Attributes:
        name: the benchmark.
        figure: what was reached.
        unit: of the figure.
        against: what it is compared with, measured in the same run.
        ratio: the figure divided by that of ``against``.
        bar: the ratio that is to be reached.
        holds: whether it is.
    """

    name: str
    figure: float
    unit: str
    against: str
    ratio: float
    bar: float
    holds: bool

    @classmethod
    def rate(cls, name: str, figure: float, against: str, other: float, bar: float) -> "Result":
        """Return the result for a rate in messages a second."""
        ratio = figure / other
        return cls(name, round(figure), "messages/s", against, round(ratio, 2), bar, ratio >= bar)


def rate(count: int, work: Callable[[], object]) -> float:
    """Return how many of ``count`` things a second the work does."""
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


Benchmark = Callable[["Bench"], Iterator[Result]]
BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(function: Benchmark) -> Benchmark:
    """Register a benchmark under its function's name."""
    BENCHMARKS[function.__name__] = function
    return function


Disk = Literal["slow", "fast"]


class Bench:
    """What a benchmark is given: databases of its own."""

    def __init__(self, server_url: str) -> None:
        self.server_url = server_url

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Give a database with the store installed, and drop it after."""
        name = f"bench_{next(_numbers)}"
        self._administer("CREATE DATABASE {}", name)
        url = conninfo.make_conninfo(self.server_url, dbname=name)
        with connect(url, autocommit=True) as connection:
            install(connection)
        yield url
        self._administer("DROP DATABASE {} WITH (FORCE)", name)

    def _administer(self, statement: str, name: str) -> None:
        # Over a connection of its own: a benchmark may have restarted the server.
        with connect(self.server_url, autocommit=True) as admin:
            admin.execute(sql.SQL(statement).format(sql.Identifier(name)))


@contextlib.contextmanager
def bench_on(disk: Disk) -> Iterator[Bench]:
    """Give a server of one's own on a disk whose flushes take 2 ms longer, or on the one here."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # a server of root runs as another user
        environment: Mapping[str, str] = slow_disk(Path(folder)) if disk == "slow" else {}
        with inherited(environment):
            server = start_embedded(Path(folder) / "postgres", delete=True)
        yield Bench(server)


def run(only: str | None, output: Path) -> bool:
    """Run all benchmarks, or one; return whether every bar was reached."""
    console = Console()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        bench = Bench(start_embedded(Path(folder) / "postgres", delete=True))
        console.print(_settings(bench.server_url))
        for name, function in BENCHMARKS.items():
            if only in (None, name):
                for result in function(bench):
                    results.append(result)
                    console.print(
                        f"{result.name}: {result.figure:,} {result.unit}, "
                        f"{result.ratio} of {result.against}"
                    )
    table = Table()
    for column in ("name", "figure", "unit", "against", "ratio", "bar", "holds"):
        table.add_column(column)
    for result in results:
        values = dataclasses.astuple(result)
        table.add_row(
            *(f"{value:,}" if isinstance(value, float) else str(value) for value in values)
        )
    console.print(table)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps([dataclasses.asdict(result) for result in results], indent=2))
    return all(result.holds for result in results)


def _settings(server_url: str) -> str:
    with connect(server_url) as connection:
        names = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_level")
        settings = [
            (name, connection.execute("SELECT current_setting(%s)", [name]).fetchall()[0][0])
            for name in names
        ]
    return "PostgreSQL: " + ", ".join(f"{name} {value}" for name, value in settings)
