"""The whole pattern on the bank: its consumers as real processes, from command to event."""

import statistics
import uuid
from collections.abc import Iterator

from bank.invariants import check_invariants
from bank.traffic import in_batches, make_traffic
from benchmarks import workload
from benchmarks.harness import Bench, Result, bench_on, benchmark
from benchmarks.peers import environment
from benchmarks.peers.drain import drain, one_at_a_time
from benchmarks.running import Running
from benchmarks.slow_disk import compiler
from reservation import MessageStore
from reservation.postgres.connection import connect

COUNT, SAMPLE, TURNS = 50_000, 3_000, 3
ACCOUNTS = 500
COMMANDS, RESERVED = "account:command", "accountTransaction"


@benchmark
def whole_pattern(bench: Bench) -> Iterator[Result]:
    """Reserve and handle 50,000 commands with a tenth of reissues, in turns with others.

    These are a plain loop that handles some of the same commands one at a time, and PgQueuer with
    as many jobs. Sending is not counted, nor is the time until the first consumer has started.
    """
    yield from _compared(bench, "whole_pattern")


@benchmark
def whole_pattern_slow_disk(_: Bench) -> Iterator[Result]:
    """Do the same on a disk whose flushes take 2 ms longer, as those of network storage do."""
    if compiler() is None:
        print("whole_pattern_slow_disk needs a C compiler, for a slow disk; there is none")
        return
    with bench_on("slow") as own:
        yield from _compared(own, "whole_pattern_slow_disk")


def _compared(bench: Bench, name: str) -> Iterator[Result]:
    print(
        f"{name}: {COUNT:,} commands to {ACCOUNTS} accounts in batches of "
        f"{workload.CONSUMED:,}, beside {SAMPLE:,} by a plain loop with one command a transaction, "
        f"and {COUNT:,} no-op jobs of PgQueuer; the median of {TURNS} turns; both "
        f"consumers are in one process, and commit as the settings above say"
    )
    compared = environment.install()
    in_sets, by_hand, jobs = [], [], []
    for _ in range(TURNS):
        in_sets.append(through_consumers(bench))
        by_hand.append(through_plain_loop(bench))
        if compared:
            jobs.append(drain(bench, "pgqueuer", COUNT, workload.CONSUMED))
    ours = statistics.median(in_sets)
    yield Result.rate(name, ours, "a plain loop, one at a time", statistics.median(by_hand), 25)
    if compared:
        peer = f"PgQueuer {environment.version('pgqueuer')}, no-op jobs"
        yield Result.rate(name, ours, peer, statistics.median(jobs), 1.0)


def through_consumers(bench: Bench) -> float:
    """Send commands, then start the consumers; return commands a second."""
    with bench.database() as url, connect(url, autocommit=True) as connection:
        sent = _send(MessageStore(connection), COUNT)
        workload.settle(connection)
        with Running(url) as running:
            start = running.started()
            running.reached(COMMANDS, len(sent))  # a retry with the same id is no message
            end = running.reached(RESERVED, workload.stored(connection, RESERVED))
        broken = [
            invariant.name
            for invariant in check_invariants(connection, sent)
            if not invariant.holds
        ]
        assert not broken, broken
    return len(sent) / (end - start).total_seconds()


def through_plain_loop(bench: Bench) -> float:
    """Send commands, then handle them one at a time without the framework; return the same."""
    with bench.database() as url, connect(url, autocommit=True) as connection:
        sent = _send(MessageStore(connection), SAMPLE)
        workload.settle(connection)
        seconds = one_at_a_time(connection, workload.CONSUMED)
        events, intents = workload.stored(connection, "account"), len(set(sent.values()))
        assert events == intents, f"{events:,} events of {intents:,} intents"
    return len(sent) / seconds


def _send(store: MessageStore, count: int) -> dict[uuid.UUID, object]:
    """Send commands to accounts, reissues among them and behind them; return them by their ids."""
    traffic = make_traffic(accounts=min(ACCOUNTS, count // 10), sends=count, seed=1)
    batches = [
        *in_batches(traffic, traffic.accounts, workload.BATCH),
        *workload.in_batches(traffic.late),
    ]
    sent = {}
    for batch in batches:
        store.write_batch(batch)
        sent.update((write.id, write.message) for write in batch)
    return sent
