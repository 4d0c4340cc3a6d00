"""Consumers beside a session that holds an old snapshot, as a backup or a forgotten one does."""

import contextlib
import statistics
from collections.abc import Iterator

from psycopg import IsolationLevel

from benchmarks import workload
from benchmarks.harness import Bench, Result, benchmark, rate
from consumers.program import drain
from reservation import MessageStore
from reservation.declaration.table import declarations
from reservation.postgres.connection import connect
from reservation.postgres.queries import load_queries

BATCHES = 100_000  # of which each moved the position of each category
COMMANDS, TURNS = 1_000, 3

_QUERIES = load_queries("benchmarks")


@benchmark
def old_snapshot(bench: Bench) -> Iterator[Result]:
    """Handle commands in batches of one, after 100,000 batches with and without an old snapshot.

    The positions are moved by the statement of a batch, each time in a transaction of its own.
    """
    rates: dict[bool, list[float]] = {held: [] for held in (False, True)}
    moves: dict[bool, list[float]] = {held: [] for held in (False, True)}
    for _ in range(TURNS):
        for held in rates:
            with bench.database() as url:
                moved, handled = _after_many_batches(url, held=held)
            moves[held].append(moved)
            rates[held].append(handled)
    without, beside = (statistics.median(rates[held]) for held in rates)
    yield Result.rate("old_snapshot", beside, "without an old snapshot", without, 0.9)
    without, beside = (statistics.median(moves[held]) for held in moves)
    yield Result.rate("old_snapshot, moves", beside, "without an old snapshot", without, 0.9)


def _after_many_batches(url: str, *, held: bool) -> tuple[float, float]:
    """Return how many moves a second the batches made, and how many commands a second follow."""
    declared = workload.component("account")
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(connect(url, autocommit=True))
        store = MessageStore(connection)
        first, *writes = workload.deposits(COMMANDS + 1, declarations(declared).command_category)
        store.write_batch([first])
        drain(declared, url, batch_size=1)
        if held:
            holder = stack.enter_context(connect(url))
            holder.isolation_level = IsolationLevel.REPEATABLE_READ
            holder.execute("SELECT FROM message_store.messages")
        connection.execute("SELECT set_config('bench.batches', %s, false)", [str(BATCHES)])
        # Each commit is the same work with and without; a flush of each would only hide the moves.
        connection.execute("SET synchronous_commit = off")
        moved = rate(2 * BATCHES, lambda: connection.execute(_QUERIES["move_positions"]))
        workload.write_batches(store, writes)
        handled = rate(COMMANDS, lambda: drain(declared, url, batch_size=1))
        assert workload.stored(connection, "account") == COMMANDS + 1
        return moved, handled
