"""The source as a stream: offsets, limits, restarts and writers that are slow to commit."""

import json

import pytest
from psycopg import connect

from reservation import MessageStore, Write
from tests.support.controls import COMMANDS, deposit

BOTH = ["account:command", "account"]


class Query:
    """A query over both categories that goes on from its checkpoint each time it is run."""

    def __init__(self, spark, folder):
        self._spark, self._folder = spark, folder
        self.batches = []

    def run(self, **options):
        """Read all that there is; return the global positions of each batch."""
        self.batches = []
        stream = (
            self._spark.readStream.format("message_store")
            .option("categories", json.dumps(BOTH))
            .option("columns", "global_position,category")
            .options(**options)
            .load()
        )
        query = (
            stream.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self._folder))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(240)
        finally:
            query.stop()
        return self.batches

    def _take(self, batch, _):
        self.batches.append(sorted(row.global_position for row in batch.collect()))


@pytest.fixture
def query(spark, tmp_path):
    """Give a query with a checkpoint of its own."""
    return Query(spark, tmp_path / "checkpoint")


def positions(connection):
    """Return all global positions that there are."""
    rows = connection.execute("SELECT global_position FROM message_store.messages ORDER BY 1")
    return [row[0] for row in rows]


def test_a_query_continues_from_its_checkpoint_in_batches_of_the_requested_size(
    query, store, connection
):
    """It stops at the given position of each category, and goes on from there."""
    for n in range(5):
        store.write([deposit(f"c{n}"), deposit(f"d{n}")], COMMANDS)
        store.write(deposit(f"e{n}"), "account-123")
    first = query.run(rows=4, until=json.dumps({"account:command": 8, "account": 6}))
    assert [row for batch in first for row in batch] == positions(connection)[:8]
    assert max(map(len, first)) <= 4
    store.write_batch([Write(deposit(f"x{n}"), "account-7") for n in range(6)])
    assert query.run() == [positions(connection)[8:]]
    assert query.run() == []


def test_a_late_commit_is_not_skipped(query, store, connection, database_url):
    """A late commit with a lower global position is not skipped."""
    with connect(database_url) as slow:
        MessageStore(slow).write(deposit("slow"), COMMANDS)
        store.write(deposit("quick"), "account-123")
        seen = query.run()
        assert seen == [positions(connection)]
        assert len(seen[0]) == 1
        slow.commit()
    rest = query.run()
    assert rest == [[row for row in positions(connection) if row not in seen[0]]]
    assert rest[0][0] < seen[0][0]
