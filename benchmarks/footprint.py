"""What consumers of several components take while nobody sends anything, and how they start."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from psycopg import Connection

from benchmarks.harness import Bench, Result, benchmark
from benchmarks.idle import asked_while_idle
from benchmarks.running import Running
from reservation.postgres.connection import connect
from reservation.postgres.queries import load_queries
from reservation.store.notifications import set_notices

COMPONENTS = ("account", "order", "stock")
CATEGORIES = 12
# A host and its process.
PROCESSES = 2
CONNECTIONS = 16
MEMORY = 110.0  # MB, all processes
ASKED = 1.0  # transactions a second of each category
READY = 3.0  # seconds from the start of the command
STARTS = 3

APP = '''
"""Three components, each with four categories: its own two, and two that it subscribes to."""

from dataclasses import dataclass

from reservation import Component


@dataclass
class Do:
    thing_id: str
    key: str


@dataclass
class Done:
    thing_id: str


def component(name, *others):
    declared = Component(name, entity=dict, id="thing_id")

    @declared.handle(Do, key="key")
    def do(command, entity, context):
        return context.follow(command, Done)

    @declared.project(Done)
    def done(entity, event):
        entity["done"] = True

    for other in others:

        @declared.handle(Done, category=other, id="thing_id", once=None)
        def follow(event, entity, context):
            return None

    return declared


account = component("account", "order", "stock")
order = component("order", "account", "stock")
stock = component("stock", "account", "order")
'''

_QUERIES = load_queries("benchmarks")


@benchmark
def footprint(bench: Bench) -> Iterator[Result]:
    """Start three components with twelve categories in one process, and look at what they take."""
    print(
        f"footprint: {len(COMPONENTS)} components with {CATEGORIES} categories, notices on, idle; "
        f"the median of {STARTS} starts"
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        bench.database() as url,
        connect(url, autocommit=True) as connection,
    ):
        (Path(folder) / "three.py").write_text(APP)
        set_notices(connection, on=True)
        apps = [f"three:{name}" for name in COMPONENTS]
        ready = []
        for n in range(STARTS):
            began = time.perf_counter()
            with Running(url, *apps[1:], app=apps[0], app_dir=Path(folder)) as running:
                running.started(CATEGORIES)
                ready.append(time.perf_counter() - began)
                if n == STARTS - 1:
                    yield from _idle(running, connection)
    yield _result("footprint, ready", statistics.median(ready), "s", READY)


def _idle(running: Running, connection: Connection) -> Iterator[Result]:
    asked = asked_while_idle(connection) / CATEGORIES
    host = psutil.Process(running.process.pid)
    processes = [host, *host.children(recursive=True)]
    memory = [process.memory_full_info() for process in processes]
    yield _result("footprint, processes", len(processes), "processes", PROCESSES)
    (connections,) = connection.execute(_QUERIES["connections"]).fetchall()[0]
    yield _result("footprint, connections", connections, "connections", CONNECTIONS)
    for process, taken in zip(processes, memory, strict=True):
        print(
            f"{' '.join(process.cmdline())[:100]}: {taken.rss / 2**20:.1f} MB, "
            f"{taken.pss / 2**20:.1f} without what others have too"
        )
    yield _result("footprint, resident", sum(one.rss for one in memory) / 2**20, "MB", MEMORY)
    yield _result("footprint, queries", asked, "transactions/s of each category", ASKED)


def _result(name: str, figure: float, unit: str, limit: float) -> Result:
    ratio = figure / limit
    against = f"the limit of {limit:g}"
    return Result(name, round(figure, 2), unit, against, round(ratio, 2), 1.0, ratio <= 1)
