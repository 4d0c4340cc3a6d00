"""Writing to and reading from the store."""

import subprocess
import sys
from collections.abc import Iterator

from bank.messages import Deposit
from benchmarks import workload
from benchmarks.harness import Bench, Result, benchmark, rate
from reservation import MessageStore
from reservation.postgres.connection import connect
from reservation.serialization import codec

COUNT, SAMPLE, LONG = 50_000, 3_000, 200_000


@benchmark
def write_batches(bench: Bench) -> Iterator[Result]:
    """Write 50,000 messages in batches of 500."""
    writes = workload.deposits(COUNT, "account:command")
    with bench.database() as url, MessageStore.open(url, max_connections=1) as store:
        ours = workload.write_batches(store, writes)
    with bench.database() as url, connect(url, autocommit=True) as connection:
        copied = workload.copy(connection, workload.encoded_rows(writes), COUNT)
    with bench.database() as url, connect(url, autocommit=True) as connection:
        unchecked = workload.insert(connection, writes)
    with bench.database() as url, MessageStore.open(url, max_connections=1) as store:
        single = rate(SAMPLE, lambda: [store.write_batch([w]) for w in writes[:SAMPLE]])
    yield Result.rate("write_batches", ours, "ours, one at a time", single, 12)
    yield Result.rate("write_batches", ours, "INSERT without any check", unchecked, 0.6)
    yield Result.rate("write_batches", ours, "COPY of the same rows", copied, 0.55)


@benchmark
def write_single(bench: Bench) -> Iterator[Result]:
    """Write one message a transaction, through a pool, as the peer does."""
    writes = workload.deposits(SAMPLE, "account:command")
    with bench.database() as url, MessageStore.open(url, max_connections=1) as store:
        ours = rate(SAMPLE, lambda: [store.write(w.message, w.stream_name) for w in writes])
    with bench.database() as url:
        client = workload.peer(url)
        rows = [(w.stream_name, {"depositId": w.message.deposit_id}) for w in writes]
        theirs = rate(SAMPLE, lambda: [client.write(s, "Deposit", d) for s, d in rows])
        client.connection_pool.closeall()
    yield Result.rate("write_single", ours, "message-db-py", theirs, 1.0)


@benchmark
def read_category(bench: Bench) -> Iterator[Result]:
    """Read a category of 200,000 messages into typed messages, and how much memory that takes."""
    writes = workload.deposits(LONG, "account:command")
    assert codec.decode(Deposit, codec.encode(writes[0].message)) == writes[0].message
    with bench.database() as url, connect(url, autocommit=True) as connection:
        store = MessageStore(connection)
        workload.write_batches(store, writes)
        workload.write_batches(store, workload.deposits(LONG // 10, "short:command"))
        del writes
        workload.settle(connection)
        pairs = [
            (
                workload.read_category(connection, "account:command", LONG),
                workload.select_category(connection, "account:command", LONG),
            )
            for _ in range(3)
        ]
        ours, bare = max(typed for typed, _ in pairs), max(other for _, other in pairs)
        yield Result.rate("read_category", ours, "a bare SELECT into tuples", bare, 0.6)
        long, short = (_memory(url, name) for name in ("account:command", "short:command"))
    yield Result(
        "read_memory",
        round(long, 1),
        "MB",
        "a category a tenth as long",
        round(long / short, 2),
        1.1,
        holds=long / short <= 1.1,
    )


_READER = """
import re, sys
from pathlib import Path
from bank.messages import Deposit
from reservation import MessageStore
with MessageStore.open(sys.argv[1]) as store:
    for message in store.read_category(sys.argv[2]):
        message.decode(Deposit)
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024)
"""


def _memory(url: str, category: str) -> float:
    """Return the most memory, in MB, that a process took which reads a category."""
    command = [sys.executable, "-c", _READER, url, category]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
