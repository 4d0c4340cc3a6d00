"""What each strategy costs: time and rows for a message, beside a handler without any.

All strategies have the same commands, the same handler and the same events. The rows are those of
all tables of both schemas, the event included, so that whatever a strategy keeps is counted.
"""

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from psycopg import Connection, sql

from benchmarks import workload
from benchmarks.harness import Bench, Result, benchmark
from reservation import Component, Context, MessageStore, Write
from reservation.declaration.table import declarations
from reservation.idempotence.strategy import Strategy
from reservation.postgres.connection import connect
from reservation.postgres.queries import load_queries
from reservation.strategies import (
    MessageIdInEvents,
    PositionInEvents,
    Processed,
    Revisions,
    StateBased,
)

TURNS, ACCOUNTS = 20, 500

SPEED = 0.25  # of the handler without a strategy, for the slowest
ROWS = 2.0  # times those of the handler without a strategy, for the one that keeps most

_QUERIES = load_queries("benchmarks")


@dataclass(frozen=True)
class Pay:
    """A command as any of the strategies may need it; one of nothing has no effect."""

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


def _handled(once: Strategy | None = None, **key: Any) -> Component:
    """Declare a component whose handler uses a key, a strategy, or neither."""
    account = Component("account", entity=Balance, id="account_id")

    @account.handle(Pay, once=once, **key)
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


WITHOUT = "no check"
STRATEGIES: dict[str, Declare] = {
    WITHOUT: _handled,
    "Processed()": lambda: _handled(Processed()),
    "Processed(key=…)": lambda: _handled(Processed(key="pay_id")),
    "MessageIdInEvents()": lambda: _handled(MessageIdInEvents()),
    "PositionInEvents()": lambda: _handled(PositionInEvents()),
    "PositionInEvents(pseudo_events=True)": lambda: _handled(PositionInEvents(pseudo_events=True)),
    "Revisions(source=None)": lambda: _handled(Revisions(source=None)),
    'StateBased("whole")': lambda: _handled(StateBased("whole")),
    'StateBased("delta")': lambda: _handled(StateBased("delta")),
    "key=…": lambda: _handled(key="pay_id"),
}

# Those that look at the events which came after a message.
BY_EVENTS = ("MessageIdInEvents()", "PositionInEvents()")


@benchmark
def idempotence(bench: Bench) -> Iterator[Result]:
    """Handle 20 batches of 1,000 commands with each strategy, and take the median of the batches.

    The strategies take turns, batch by batch, so that other work of the machine slows down each.
    """
    print(
        f"idempotence: {TURNS} batches of {workload.CONSUMED:,} commands to {ACCOUNTS} entities, "
        f"each with one event; the median of the batches, which all strategies handle in turns. A "
        f"batch is sent and then handled; with a backlog, all were sent before the first was "
        f"handled. The rows are those of all tables, the command left out"
    )
    with contextlib.ExitStack() as stack:
        running = {
            name: _Running(stack.enter_context(bench.database()), stack, declare())
            for name, declare in {
                **STRATEGIES,
                **{f"{name}, backlog": STRATEGIES[name] for name in (WITHOUT, *BY_EVENTS)},
            }.items()
        }
        for name, strategy in running.items():
            if name.endswith("backlog"):
                strategy.send(workload.CONSUMED * TURNS)
        for _ in range(TURNS):
            for name, strategy in running.items():
                strategy.turn(send=not name.endswith("backlog"))
        for name, strategy in running.items():
            assert workload.stored(strategy.connection, "account") == strategy.sent
            without = WITHOUT + name.partition(",")[1] + name.partition(",")[2]
            yield Result.rate(name, strategy.speed(), without, running[without].speed(), SPEED)
        kept = {name: running[name].kept() for name in STRATEGIES}
        for name, declare in STRATEGIES.items():
            idle = _Running(stack.enter_context(bench.database()), stack, declare(), amount=0)
            idle.turn(send=True)
            yield _kept(name, kept[name], kept[WITHOUT])
            yield _kept(f"{name}, no event", idle.kept(), kept[WITHOUT])


class _Running:
    """One strategy, with a database and consumers of its own."""

    def __init__(
        self, url: str, stack: contextlib.ExitStack, declared: Component, amount: int = 1
    ) -> None:
        self.connection = stack.enter_context(connect(url, autocommit=True))
        self.sent = 0
        self._declared = declared
        self._amount = amount
        self._took: list[float] = []
        table = declarations(declared)
        categories = [table.command_category, *table.reservation_categories]
        self._steps = [
            stack.enter_context(workload.consumer(self.connection, declared, category))
            for category in categories
        ]
        self._before = _rows(self.connection)

    def send(self, count: int) -> None:
        """Send a number of commands."""
        numbers = range(self.sent, self.sent + count)
        writes = [
            Write(
                Pay(f"p{n}", str(n % ACCOUNTS), self._amount, n),
                f"{declarations(self._declared).command_category}-{n % ACCOUNTS}",
            )
            for n in numbers
        ]
        workload.write_batches(MessageStore(self.connection), writes)
        self.sent += count

    def turn(self, *, send: bool) -> None:
        """Send a batch of commands and take them through all consumers, or take a waiting batch."""
        if send:
            self.send(workload.CONSUMED)
        gc.collect()
        start = time.perf_counter()
        for step in self._steps:
            if send:
                workload.drain(step)
            else:
                step()
        self._took.append(time.perf_counter() - start)

    def speed(self) -> float:
        """Return commands a second."""
        return workload.CONSUMED / statistics.median(self._took)

    def kept(self) -> float:
        """Return how many rows each command left behind, not counting itself."""
        return (_rows(self.connection) - self._before) / self.sent - 1


def _rows(connection: Connection[Any]) -> int:
    """Return how many rows there are in all tables of both schemas."""
    tables = connection.execute(_QUERIES["tables"]).fetchall()
    count = sql.SQL("SELECT count(*) FROM {}")
    return sum(
        int(connection.execute(count.format(sql.Identifier(*table))).fetchall()[0][0])
        for table in tables
    )


def _kept(name: str, figure: float, other: float) -> Result:
    figure, ratio = round(figure, 2), round(figure / other, 2)
    return Result(name, figure, "rows/message", WITHOUT, ratio, ROWS, ratio <= ROWS)
