"""The source as a stream: offsets, limits, restarts and writers that are slow to commit."""

import json

import pytest

from reservation import MessageStore, Write
from reservation.postgres.connection import connect
from tests.controls import COMMANDS, deposit

pytestmark = pytest.mark.spark

BOTH = ["account:command", "account"]


class Following:
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
def following(spark, tmp_path):
    """Give a query with a checkpoint of its own."""
    return Following(spark, tmp_path / "checkpoint")


def positions(connection):
    """Return all global positions that there are."""
    rows = connection.execute("SELECT global_position FROM message_store.messages ORDER BY 1")
    return [row[0] for row in rows]


@pytest.mark.long
def test_a_query_continues_from_its_checkpoint_in_batches_of_the_requested_size(
    following, spark_store, spark_connection
):
    """A query continues from its checkpoint in batches of the requested size."""
    for n in range(5):
        spark_store.write([deposit(f"c{n}"), deposit(f"d{n}")], COMMANDS)
        spark_store.write(deposit(f"e{n}"), "account-123")
    first = following.run(rows=4)
    assert [row for batch in first for row in batch] == positions(spark_connection)
    assert max(map(len, first)) <= 4
    assert len(first) >= 4
    known = positions(spark_connection)
    spark_store.write_batch([Write(deposit(f"x{n}"), "account-7") for n in range(6)])
    second = following.run()
    assert second == [[row for row in positions(spark_connection) if row not in known]]
    assert following.run() == []


def test_a_late_commit_is_not_skipped(following, spark_store, spark_connection, spark_database_url):
    """A late commit with a lower global position is not skipped."""
    with connect(spark_database_url) as slow:
        MessageStore(slow).write(deposit("slow"), COMMANDS)
        spark_store.write(deposit("quick"), "account-123")
        seen = following.run()
        assert seen == [positions(spark_connection)]
        assert len(seen[0]) == 1
        slow.commit()
    rest = following.run()
    assert rest == [[row for row in positions(spark_connection) if row not in seen[0]]]
    assert rest[0][0] < seen[0][0]


def test_a_stream_reads_up_to_the_given_positions(following, spark_store, spark_connection):
    """A stream stops at the given position of each category and goes on from there."""
    for n in range(3):
        spark_store.write(deposit(f"c{n}"), COMMANDS)
        spark_store.write(deposit(f"e{n}"), "account-123")
    known = positions(spark_connection)
    until = json.dumps({"account:command": known[2], "account": known[1]})
    assert following.run(until=until) == [known[:3]]
    assert following.run() == [known[3:]]
