"""Writing to and reading from the store."""

from collections.abc import Iterator

from bank.messages import Deposit
from benchmarks.harness import Bench, Result, benchmark
from benchmarks.workload import copy, deposits, peer
from reservation import MessageStore, codec
from reservation.store.connection import connect

BATCH = 500


@benchmark
def write_batches(bench: Bench) -> Iterator[Result]:
    """Write 50,000 messages in batches of 500."""
    count, sample = 50_000, 2_000
    writes = deposits(count)
    with bench.database() as url, connect(url, autocommit=True) as connection:
        store = MessageStore(connection)
        batches = [writes[n : n + BATCH] for n in range(0, count, BATCH)]
        ours = bench.rate(count, lambda: [store.write_batch(batch) for batch in batches])
    with bench.database() as url, connect(url, autocommit=True) as connection:
        copied = bench.rate(count, lambda: copy(connection, writes, "copied"))
    with bench.database() as url, connect(url, autocommit=True) as connection:
        single = MessageStore(connection)
        one = bench.rate(sample, lambda: [single.write_batch([w]) for w in writes[:sample]])
    yield Result.rate("write_batches", ours, "ours, one at a time", one, 12)
    yield Result.rate("write_batches", ours, "COPY", copied, 0.5)


@benchmark
def write_single(bench: Bench) -> Iterator[Result]:
    """Write one message a transaction."""
    sample = 3_000
    writes = deposits(sample)
    with bench.database() as url, connect(url, autocommit=True) as connection:
        store = MessageStore(connection)
        ours = bench.rate(sample, lambda: [store.write(w.message, w.stream_name) for w in writes])
    with bench.database() as url:
        client = peer(url)
        rows = [(w.stream_name, {"depositId": w.message.deposit_id}) for w in writes]
        theirs = bench.rate(sample, lambda: [client.write(s, "Deposit", d) for s, d in rows])
        client.connection_pool.closeall()
    yield Result.rate("write_single", ours, "message-db-py", theirs, 1.0)


@benchmark
def read_category(bench: Bench) -> Iterator[Result]:
    """Read a category of 200,000 messages into typed messages."""
    count = 200_000
    writes = deposits(count)
    with bench.database() as url, connect(url, autocommit=True) as connection:
        store = MessageStore(connection)
        for n in range(0, count, BATCH):
            store.write_batch(writes[n : n + BATCH])

        def read() -> None:
            for message in store.read_category("account:command"):
                message.decode(Deposit)

        ours = bench.rate(count, read)
        query = (
            "SELECT id::text, stream_name, type, position, global_position, data::text, "
            "metadata::text, time FROM message_store.messages "
            "WHERE message_store.category(stream_name) = 'account:command' ORDER BY global_position"
        )
        bare = bench.rate(count, lambda: connection.execute(query).fetchall())
    assert codec.decode(Deposit, codec.encode(writes[0].message)) == writes[0].message
    yield Result.rate("read_category", ours, "a bare SELECT into tuples", bare, 0.6)
