"""What each way to be idempotent costs: time and rows for a message, beside a handler without any.

Every way has the same commands, the same handler and the same events. The rows are those of all
tables of both schemas, the event included, so that whatever a way keeps is counted.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from psycopg import Connection, sql

from benchmarks import workload
from benchmarks.harness import Bench, Result, benchmark
from reservation import (
    Component,
    Context,
    MessageIdInEvents,
    MessageStore,
    Processed,
    Revisions,
    Sequence,
    StateBased,
    Write,
)
from reservation.idempotence.strategy import Strategy
from reservation.queries import load_queries
from reservation.store.connection import connect

COUNT, ACCOUNTS, ROUNDS = 10_000, 500, 3
FEW = 1_000  # of which no more than the rows is wanted

SPEED = 0.25  # of the handler without any, for the slowest
ROWS = 2.0  # times those of the handler without any, for the one that keeps most

_QUERIES = load_queries("benchmarks")


@dataclass(frozen=True)
class Pay:
    """A command as any of the ways may want it; one of nothing has no effect."""

    pay_id: str
    account_id: str
    amount: int
    revision: int


@dataclass(frozen=True)
class Paid:
    pay_id: str
    account_id: str
    amount: int


@dataclass
class Balance:
    amount: int = 0
    last: str = ""


Declare = Callable[[], Component]


def _handled(once: Strategy | StateBased | None = None) -> Component:
    """Declare a component whose handler is idempotent in one way, or in none."""
    account = Component("account", entity=Balance, id="account_id")

    @account.handle(Pay, once=once)
    def pay(command: Pay, balance: Balance, context: Context) -> Paid | None:
        if not command.amount:
            return None
        if isinstance(once, StateBased):
            balance.amount += command.amount
            balance.last = command.pay_id
        return context.follow(command, Paid)

    if not isinstance(once, StateBased):

        @account.project(Paid)
        def paid(balance: Balance, event: Paid) -> None:
            balance.amount += event.amount
            balance.last = event.pay_id

    return account


def _reserved(into: str | None) -> Component:
    """Declare one whose commands are reserved, into another category or within their own."""
    account = _handled()
    entity = None if into is None else "account_id"
    account.reserve(Pay, key="pay_id", into=into, entity=entity)
    return account


WITHOUT = "no check"
WAYS: dict[str, Declare] = {
    WITHOUT: _handled,
    "Processed()": lambda: _handled(Processed()),
    "Processed(key=…)": lambda: _handled(Processed(key="pay_id")),
    "MessageIdInEvents()": lambda: _handled(MessageIdInEvents()),
    "Sequence()": lambda: _handled(Sequence()),
    "Sequence(pseudo_events=True)": lambda: _handled(Sequence(pseudo_events=True)),
    "Revisions(source=None)": lambda: _handled(Revisions(source=None)),
    'StateBased("whole")': lambda: _handled(StateBased("whole")),
    'StateBased("delta")': lambda: _handled(StateBased("delta")),
    "reserve(into=…)": lambda: _reserved("accountTransaction"),
    "reserve()": lambda: _reserved(None),
}


@benchmark
def idempotence(bench: Bench) -> Iterator[Result]:
    """Handle 10,000 commands to 500 entities in each way; the best of three rounds.

    A thousand are sent and then handled, as by a consumer that keeps up. Those ways that look at
    the events are measured with all of the commands waiting, too.
    """
    print(
        f"idempotence: {COUNT:,} commands to {ACCOUNTS} entities, each with one event, in batches "
        f"of {workload.CONSUMED:,} that are sent and then handled; the best of {ROUNDS} rounds "
        f"through all ways. 'backlog' is where all were sent before the first was handled"
    )
    cases = [(name, workload.CONSUMED) for name in WAYS]
    cases += [(name, COUNT) for name in (WITHOUT, "MessageIdInEvents()")]
    best = dict.fromkeys(cases, 0.0)
    rows: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, waiting in cases:
            speed, rows[name] = _handle(bench, WAYS[name](), COUNT, waiting, amount=1)
            best[name, waiting] = max(best[name, waiting], speed)
    for name, waiting in cases:
        of = name if waiting < COUNT else f"{name}, backlog"
        without = best[WITHOUT, waiting]
        yield Result.rate(of, best[name, waiting], WITHOUT, without, SPEED)
    for name, declare in WAYS.items():
        _, idle = _handle(bench, declare(), FEW, workload.CONSUMED, amount=0)
        yield _kept(name, rows[name], rows[WITHOUT])
        yield _kept(f"{name}, no event", idle, rows[WITHOUT])


def _handle(
    bench: Bench, declared: Component, count: int, waiting: int, amount: int
) -> tuple[float, float]:
    """Send and handle so many commands at a time; return commands a second, and rows for each."""
    sent = [
        Write(
            Pay(f"p{n}", str(n % ACCOUNTS), amount, n),
            f"{declared.command_category}-{n % ACCOUNTS}",
        )
        for n in range(count)
    ]
    with bench.database() as url, connect(url, autocommit=True) as connection:
        categories = [declared.command_category, *declared.reservation_categories]
        drains = [workload.consumer(connection, declared, category) for category in categories]
        before = _rows(connection)
        took = 0.0
        for n in range(0, count, waiting):
            workload.write_batches(MessageStore(connection), sent[n : n + waiting])
            workload.settle(connection)
            start = time.perf_counter()
            for drain in drains:
                drain()
            took += time.perf_counter() - start
        if amount:
            assert workload.stored(connection, declared.name) == count
        return count / took, (_rows(connection) - before) / count - 1  # without the command itself


def _rows(connection: Connection[Any]) -> int:
    """Return how many rows there are in all tables of both schemas."""
    tables = connection.execute(_QUERIES["tables"]).fetchall()
    count = sql.SQL("SELECT count(*) FROM {}")
    return sum(
        int(connection.execute(count.format(sql.Identifier(*table))).fetchall()[0][0])
        for table in tables
    )


def _kept(name: str, figure: float, other: float) -> Result:
    ratio = figure / other
    return Result(
        name, round(figure, 2), "rows/message", WITHOUT, round(ratio, 2), ROWS, ratio <= ROWS
    )
