"""The reservation pattern: reserving, handling, and both one message at a time with a peer."""

from collections.abc import Iterator

from message_db.client import MessageDB

from bank import account
from benchmarks.harness import Bench, Result, benchmark
from benchmarks.workload import copy, deposits, peer
from consumers.batch import Batch
from consumers.position import Position
from reservation import MessageStore
from reservation.store.connection import connect

COUNT, KEYS, SAMPLE = 50_000, 45_000, 2_000
BATCH = 500


@benchmark
def reserve_and_handle(bench: Bench) -> Iterator[Result]:
    """Reserve 50,000 commands, one in ten a reissue, and handle the copies."""
    writes = deposits(COUNT, keys=KEYS)
    with bench.database() as url, connect(url, autocommit=True) as connection:
        store = MessageStore(connection)
        for n in range(0, COUNT, BATCH):
            store.write_batch(writes[n : n + BATCH])

        def drain(category: str) -> None:
            batch = Batch(connection, account, Position.claim(connection, "account", category))
            while batch.run(BATCH).read:
                pass

        reserved = bench.rate(COUNT, lambda: drain("account:command"))
        handled = bench.rate(KEYS, lambda: drain("accountTransaction"))
    with bench.database() as url, connect(url, autocommit=True) as connection:
        copied = bench.rate(COUNT, lambda: copy(connection, writes, "accountTransaction"))
    with bench.database() as url, connect(url, autocommit=True) as connection:
        MessageStore(connection).write_batch(deposits(SAMPLE, keys=SAMPLE * KEYS // COUNT))
        client = peer(url)
        one = bench.rate(SAMPLE, lambda: _one_at_a_time(client))
        client.connection_pool.closeall()
    yield Result.rate("reserve", reserved, "one at a time with message-db-py", one, 15)
    yield Result.rate("reserve", reserved, "COPY", copied, 0.55)
    yield Result.rate("handle", handled, "COPY", copied, 0.2)


def _one_at_a_time(client: MessageDB) -> None:
    """Do the pattern's first half as it is done by hand: a round trip and a commit a message."""
    for command in client.read_category("account:command", 0, SAMPLE):
        data = command["data"]
        name = f"accountTransaction-{data['accountId']}+{data['depositId']}"
        try:
            client.write(name, command["type"], data, expected_version=-1)
        except ValueError as error:
            if "Wrong expected version" not in str(error):
                raise
