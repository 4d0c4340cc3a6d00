"""The whole pattern on the bank: its consumers as real processes, from command to event."""

from collections.abc import Iterator

from bank.invariants import check_invariants
from bank.traffic import in_batches, make_traffic
from benchmarks import workload
from benchmarks.harness import Bench, Result, benchmark
from benchmarks.running import Running
from reservation import MessageStore
from reservation.postgres.connection import connect

COUNT, SAMPLE = 50_000, 3_000
ACCOUNTS = 500
COMMANDS, RESERVED = "account:command", "accountTransaction"


@benchmark
def whole_pattern(bench: Bench) -> Iterator[Result]:
    """Reserve and handle 50,000 commands with a tenth of reissues, and some one at a time.

    Sending is not counted, nor is the time until the first consumer has started.
    """
    print(
        f"whole_pattern: {COUNT:,} commands to {ACCOUNTS} accounts in batches of 1,000, beside "
        f"{SAMPLE:,} with --batch-size 1; each consumer is a process, and commits as the settings "
        f"above say"
    )
    in_sets = _through(bench, COUNT)
    one_at_a_time = _through(bench, SAMPLE, "--batch-size", "1")
    yield Result.rate("whole_pattern", in_sets, "one message a transaction", one_at_a_time, 15)


def _through(bench: Bench, count: int, *arguments: str) -> float:
    """Send commands, then start the consumers; return commands a second."""
    with bench.database() as url, connect(url, autocommit=True) as connection:
        acknowledged = _send(MessageStore(connection), count)
        workload.settle(connection)
        with Running(url, *arguments) as running:
            start = running.started()
            running.reached(COMMANDS, len(acknowledged))  # a retry with the same id is no message
            end = running.reached(RESERVED, workload.stored(connection, RESERVED))
        broken = [
            invariant.name
            for invariant in check_invariants(connection, acknowledged)
            if not invariant.holds
        ]
        assert not broken, broken
    return len(acknowledged) / (end - start).total_seconds()


def _send(store: MessageStore, count: int) -> set[object]:
    """Send commands to accounts, reissues among them and behind them; return their ids."""
    traffic = make_traffic(accounts=min(ACCOUNTS, count // 10), sends=count, seed=1)
    batches = [
        *in_batches(traffic, traffic.accounts, workload.BATCH),
        *workload.in_batches(traffic.late),
    ]
    sent = set()
    for batch in batches:
        store.write_batch(batch)
        sent.update(write.id for write in batch)
    return sent
