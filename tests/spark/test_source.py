"""The Spark data source ``message_store``."""

import json
from datetime import UTC

import psycopg
import pyarrow as pa
import pytest
from psycopg import conninfo
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812

from reservation import MessageStore, Metadata
from reservation.errors import ReservationError
from spark_jobs.common.errors import ReadError
from spark_jobs.source import reading
from spark_jobs.source.source import MessageStoreSource
from tests.support.controls import COMMANDS, deposit


@pytest.fixture
def read(spark, database_url):
    """Give a function that reads a category, or several."""

    def load(category="account:command", **options):
        reader = spark.read.format("message_store").option("category", category)
        return reader.options(**options).load()

    return load


def positions(frame):
    """Return the global positions of the rows."""
    return sorted(row.global_position for row in frame.collect())


def test_every_message_of_a_category_is_read_once(read, store, connection):
    """Every message of a category is read once, in any number of ranges; of none there is none."""
    for n in range(5):
        store.write([deposit(f"d{n}-{m}") for m in range(4)], COMMANDS)
        store.write(deposit(f"d{n}"), "account-123")
    stored = [message.global_position for message in store.read_category("account:command")]
    for partitions in (1, 30):
        assert positions(read(partitions=partitions)) == stored
    assert positions(read("account")) == [5, 10, 15, 20, 25]
    assert positions(read("nothing")) == []


def test_all_partitions_and_categories_see_one_snapshot(read, store, connection):
    """With the id of an exported snapshot, all reads see what it sees."""
    store.write([deposit(f"d{n}") for n in range(10)], COMMANDS)
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ((snapshot,),) = connection.execute("SELECT pg_export_snapshot()").fetchall()
        commands = read(partitions=4, snapshot=snapshot)
        other = read("accountTransaction", snapshot=snapshot)
        assert commands.count() == 10
        with psycopg.connect(connection.info.dsn, password=connection.info.password) as writer:
            late = MessageStore(writer)
            late.write([deposit(f"x{n}") for n in range(10)], COMMANDS)
            late.write(deposit("x"), "accountTransaction-123+x")
        assert (commands.count(), other.count()) == (10, 0)
    assert read().count() == 20


def test_the_plan_holds_no_secret(read, store, database_url):
    """The address is in the workers' environment, not in an option of the plan."""
    plan = read()._jdf.queryExecution().toString()
    assert database_url not in plan
    assert "postgres" not in plan


def test_the_columns_are_what_is_stored(read, store, connection):
    """The columns are what clients read, whatever the data."""
    store.write(deposit("d1"), COMMANDS, metadata=Metadata(correlation_stream_name="x:y-1"))
    for data in ("null", "[1]", '"text"', "9" * 400, '{"a": "<b>\\u202e"}'):
        connection.execute(
            "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, %s::jsonb)",
            [COMMANDS, "\x1b[31m<b>", data],
        )
    connection.execute(
        "INSERT INTO message_store.messages (stream_name, position, type) VALUES (%s, 9, 'None')",
        [COMMANDS],
    )
    rows = [row.asDict() for row in read().orderBy("global_position").collect()]
    stored = list(store.read_category("account:command"))
    assert len(rows) == len(stored) == 7
    for row, message in zip(rows, stored, strict=True):
        assert row.pop("category") == "account:command"
        assert row.pop("metadata") == message.metadata_json
        assert row.pop("time").astimezone(UTC) == message.time.replace(tzinfo=UTC)
        assert row == {name: getattr(message, name) for name in row}


def test_only_the_columns_that_are_asked_for_are_read(read, store):
    """They come in their order, and some are made of the metadata."""
    sender = Metadata(correlation_stream_name="transfer:x-1", reply_stream_name="other-1")
    store.write([deposit("d1"), deposit("d2")], COMMANDS, metadata=sender)
    frame = read(columns="sender, type")
    assert frame.columns == ["sender", "type"]
    assert {tuple(row) for row in frame.collect()} == {("transfer:x", "Deposit")}


def test_a_dataframe_gives_the_same_answers_however_often_it_is_used(spark, read, store):
    """A DataFrame gives the same result after other uses with other filters."""
    store.write([deposit(f"d{n}") for n in range(6)], COMMANDS)
    pushes = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(pushes)
    spark.conf.set(pushes, "true")
    try:
        frame = read(columns="global_position,position,id")
        first = frame.where(F.col("position") < 2)
        assert (first.count(), frame.count()) == (2, 6)
        assert frame.where(F.col("position") >= 2).count() == 4
        both = first.alias("a").join(frame.alias("b"), F.col("a.id") != F.col("b.id"))
        assert both.count() == 2 * 5
        assert first.unionByName(frame).count() == 8
    finally:
        spark.conf.set(pushes, before)


def test_a_read_is_limited_by_the_positions_that_it_is_given(read, store):
    """A read covers the given range of positions of each category."""
    store.write([deposit(f"d{n}") for n in range(6)], COMMANDS)
    store.write([deposit(f"e{n}") for n in range(3)], "account-123")

    def limited(**options):
        both = json.dumps(["account:command", "account"])
        return positions(read("", categories=both, **options))

    assert limited() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    limits = {"after": '{"account:command": 2}', "until": '{"account:command": 4, "account": 8}'}
    assert limited(**limits) == [3, 4, 7, 8]
    assert limited(until='{"account:command": 0, "account": 100}') == [7, 8, 9]


WRONG = [
    ({"filtres": "x"}, "has no option 'filtres'; there are category"),
    ({"path": "x"}, "has no option 'path'"),
    ({"category": "account", "categories": '["account"]'}, "category and categories exclude"),
    ({"category": "account-123"}, "'account-123' is the name of a stream; name its category"),
    ({"categories": '["a", "b", "a"]'}, "categories names 'a' twice"),
    ({"categories": '["a-1"]'}, "'a-1' is the name of a stream"),
    ({"categories": "account"}, "needs the option category"),
    ({"categories": '["a", 1]'}, "needs the option category"),
    ({"category": ""}, "needs the option category"),
    ({"category": "a", "columns": "id,id"}, "columns names 'id' twice"),
    ({"category": "a", "columns": "payload"}, "no column 'payload'"),
    ({"category": "a", "rows": "-1"}, "rows is a number of at least 1, not '-1'"),
    ({"category": "a", "rows": "0"}, "rows is a number of at least 1"),
    ({"category": "a", "partitions": "many"}, "partitions is a number of at least 1"),
    ({"category": "a", "after": "7"}, "after is a JSON object"),
    ({"category": "a", "after": '{"a": -1}'}, "after is a JSON object"),
    ({"category": "a", "until": '{"a": true}'}, "until is a JSON object"),
    ({"category": "a", "until": '{"b": 1}'}, "until names 'b', which is not read"),
    ({"category": "a", "after": '{"a": 5}', "until": '{"a": 4}'}, "after and until exclude each"),
    ({"category": "a", "filters": "true"}, "has no option 'filters'"),
    ({"category": "a", "declaration": "{"}, "declaration is not what Declaration.to_json returns"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_a_wrong_option_is_refused_with_one_line(options, said):
    """A wrong option is refused in one line that names it and says what to give."""
    with pytest.raises(ReservationError, match=said) as refused:
        MessageStoreSource(options)
    assert "\n" not in str(refused.value)


def test_options_are_read_when_the_read_is_loaded(spark):
    """Options are checked at load, for batch reads and for streams."""
    for reader in (spark.read, spark.readStream):
        with pytest.raises(AnalysisException, match="has no option 'filtres'"):
            reader.format("message_store").options(category="a", filtres="x").load()
    with pytest.raises(AnalysisException, match="rows is for a stream"):
        spark.read.format("message_store").options(category="a", rows="5").load().count()


def test_ranges_hold_about_equal_numbers_of_messages(read, connection):
    """However unevenly they lie in the log; few messages are one range."""
    connection.execute(
        """
        INSERT INTO message_store.messages (global_position, stream_name, position, type)
        SELECT CASE WHEN n <= 60000 THEN n ELSE 1000000 + 50 * n END, 'uneven-1', n, 'Any'
        FROM generate_series(1, 120000) AS n
        """
    )
    parts = read("uneven", columns="global_position").withColumn("part", F.spark_partition_id())
    counts = [row["count"] for row in parts.groupBy("part").count().collect()]
    assert (len(counts), sum(counts)) == (4, 120_000)
    assert max(counts) - min(counts) <= 2
    few = read("uneven", columns="global_position", until='{"uneven": 1000}')
    assert few.rdd.getNumPartitions() == 1


def test_a_server_that_goes_away_while_rows_are_fetched_is_named(database_url, connection):
    """The error is one line, and one of this package, although Arrow raises it."""
    address = conninfo.make_conninfo(database_url, application_name="fetching")
    rows = "SELECT n, repeat('x', 1000) FROM generate_series(1::bigint, 200000) AS n"
    columns = pa.schema([("n", pa.int64()), ("text", pa.string())])
    fetched = reading.batches([rows], None, columns, address)
    assert next(fetched).num_rows < 200_000
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
    assert connection.execute(ended, ["fetching"]).fetchall() == [(True,)]
    with pytest.raises(ReadError, match=r"The database could not be read: .*closed") as failed:
        for _ in fetched:
            pass
    assert "\n" not in str(failed.value)
