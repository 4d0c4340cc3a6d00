"""How far consumers are, by partition; where none of ours has run, as Eventide's positions say."""

from dataclasses import dataclass
from functools import partial

import pytest
from psycopg.types.json import Jsonb
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from bank import account
from reservation import Component
from reservation.errors import ForeignPositionError
from reservation.postgres.connection import connect
from reservation.store.schema.install import attach
from spark_jobs.analysis.commands import CommandsJob
from spark_jobs.analysis.sketches import grouping
from spark_jobs.analysis.verdicts import fingerprints
from spark_jobs.analysis.verdicts.prefilter import Prefilter, PrefilterInput
from spark_jobs.common.declaration import Declaration
from spark_jobs.reconciliation.full_run import FullRun
from spark_jobs.reconciliation.reading.categories import Categories
from spark_jobs.reconciliation.reading.fingerprinting import ServerFingerprints
from spark_jobs.snapshot import partitions
from spark_jobs.snapshot.progress import Consumed
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests.bank import RESERVED, batch
from tests.message_db import imitate

pytestmark = pytest.mark.spark

STREAMS = ["", "-", "-a", "-a+1", "-a+2", "-b", "-b+x+y", "-c", "-d", "-e", "-g-h", "-ü", "-+z"]


@dataclass
class Send:
    thing_id: str
    key: str


def component():
    """Return one that reserves a command."""
    made = Component("thing", id="thing_id")
    made.reserve(Send, into="sent", key="key")
    made.handle(Send)(lambda command, entity, context: None)
    return made


def test_a_stream_is_in_the_partition_in_which_consumers_read_it(spark, spark_connection):
    """A stream's partition is the consumers', for any number of partitions and any id."""
    names = [f"thing:command{name}" for name in STREAMS]
    frame = spark.createDataFrame([(name,) for name in names], "stream_name string")
    for size in (1, 2, 3, 7, 1024):
        hashed = partitions.hashed(F.col("stream_name"))
        found = frame.select(partitions.position(hashed, range(size))).collect()
        expected = spark_connection.execute(
            "SELECT reservation.partition_of(name, %s) FROM unnest(%s::text[]) AS name",
            [size, names],
        )
        assert [row[0] for row in found] == [row[0] for row in expected]


# Messages that a partition at this position has not read.
UNREAD = """
SELECT m.global_position FROM message_store.messages m
WHERE m.global_position > (%(positions)s::bigint[])[
        1 + reservation.partition_of(m.stream_name, cardinality(%(positions)s))]
  AND (cardinality(%(carried)s::bigint[]) = 0 OR m.global_position > (%(carried)s::bigint[])[
        1 + reservation.partition_of(m.stream_name, cardinality(%(carried)s))])
"""


@pytest.mark.parametrize(
    ("positions", "carried"),
    [
        ([7, 45, 30], []),
        ([60, 10], []),
        ([20, 20], []),
        ([10, 10], [40, 5, 25, 12]),
        ([10, 30, 30], [40, 5]),
        ([50, 60], [40, 5]),
    ],
)
def test_each_command_is_judged_by_the_position_of_its_partition(
    spark, spark_connection, spark_database_url, positions, carried
):
    """A command is missing if its own partition has passed it, and otherwise pending."""
    for n in range(60):
        spark_connection.execute(
            "INSERT INTO message_store.messages (stream_name, position, type, data) "
            "VALUES (%s, %s, 'Send', %s)",
            [
                f"thing:command{STREAMS[n % len(STREAMS)]}",
                n,
                Jsonb({"thingId": "1", "key": f"{n}"}),
            ],
        )
    spark_connection.execute(
        "INSERT INTO reservation.groups (consumer, category, partitions, carried) "
        "VALUES ('thing', 'thing:command', %s, %s)",
        [len(positions), carried or None],
    )
    for partition, position in enumerate(positions):
        spark_connection.execute(
            "INSERT INTO reservation.positions (consumer, category, partition, position) "
            "VALUES ('thing', 'thing:command', %s, %s)",
            [partition, position],
        )
    rows = spark_connection.execute(UNREAD, {"positions": positions, "carried": carried})
    read = set(range(1, 61)) - {row[0] for row in rows}
    job = CommandsJob(component(), "", None)
    with exported_snapshot(spark_database_url) as snapshot:
        progress = snapshot.progress(component())
        categories = Categories(spark, snapshot, Declaration.of(component()))
        made = fingerprints.of_messages(categories, component(), progress, "", None)
        for seen in (
            None,
            ServerFingerprints(categories, component(), progress, 1).seen,
            partial(grouping.summed, made.mapInArrow, parts=2),
        ):
            prefilter = None
            if seen is not None:
                messages = PrefilterInput(seen, categories.at, categories.at)
                prefilter = Prefilter([job], messages, progress)
            whole = FullRun(categories, progress, prefilter)
            (result,) = job.results(whole.take(job))
            found = {row.global_position for row in whole.findings().collect()}
            assert found == read
            assert (result.missing, result.pending) == (len(read), 60 - len(read))


def written(connection, number):
    """Store commands, the first at global position 1."""
    connection.execute(
        "INSERT INTO message_store.messages (stream_name, position, type, data) "
        """SELECT 'thing:command-1', n, 'Send', '{"thingId": "1", "key": "k"}' """
        "FROM generate_series(0, %s) AS n",
        [number - 1],
    )


@pytest.mark.parametrize("carried", [False, True])
def test_a_position_of_another_log_does_not_count(spark_connection, spark_database_url, carried):
    """A position of another log makes no message count as read."""
    written(spark_connection, 3)
    spark_connection.execute(
        "INSERT INTO reservation.groups (consumer, category, partitions, carried, carried_ids) "
        "VALUES ('thing', 'thing:command', 1, %s, %s)",
        [[2], ["0f5ba3a5-3c5c-4d3c-9a55-2a5a0e3dbb5f"]] if carried else [None, None],
    )
    spark_connection.execute(
        "INSERT INTO reservation.positions (consumer, category, partition, position, message_id) "
        "VALUES ('thing', 'thing:command', 0, %s, %s)",
        [1, None] if carried else [2, "0f5ba3a5-3c5c-4d3c-9a55-2a5a0e3dbb5f"],
    )
    with (
        exported_snapshot(spark_database_url) as snapshot,
        pytest.raises(ForeignPositionError, match=r"thing of thing:command stands at .*, whose"),
    ):
        snapshot.progress(component())


def test_a_letter_of_another_log_is_none_of_the_message_in_its_place(
    spark_connection, spark_database_url
):
    """A dead letter of another log does not excuse a lost command at its position."""
    written(spark_connection, 3)
    spark_connection.execute(
        "INSERT INTO reservation.positions (consumer, category, partition, position) "
        "VALUES ('thing', 'thing:command', 0, 3)"
    )
    spark_connection.execute(
        "INSERT INTO reservation.dead_letters (consumer, category, global_position, message_id, "
        "stream_name, type, state, reason, process) SELECT 'thing', 'thing:command', "
        "global_position, CASE global_position WHEN 1 THEN id ELSE gen_random_uuid() END, "
        "stream_name, type, 'dead', 'handler', 'p' FROM message_store.messages"
    )
    with exported_snapshot(spark_database_url) as snapshot:
        progress = snapshot.progress(component())
    assert progress.consumed["thing:command"].letters == [1]


def test_a_consumer_that_read_at_least_as_much_did_not_go_back():
    """Positions for another number of partitions count only if all of them are higher."""
    consumed = Consumed.of_partitions([5, 9])
    assert Consumed.of_partitions([5, 9]).reaches(consumed)
    assert Consumed.of_partitions([6, 9]).reaches(consumed)
    assert not Consumed.of_partitions([9, 8]).reaches(consumed)
    assert Consumed.of_partitions([9]).reaches(consumed)
    assert not Consumed.of_partitions([8]).reaches(consumed)
    assert not Consumed.of_partitions([5, 5], [5, 9]).reaches(consumed)
    assert Consumed.of_partitions([5, 9]).reaches(Consumed.of_partitions([5]))
    assert not Consumed.of_partitions([5, 9]).reaches(Consumed.of_partitions([6]))


def recorded(connection, category, position):
    """Have a consumer of Eventide store its position."""
    connection.execute(
        "INSERT INTO message_store.messages (stream_name, position, type, data) "
        "VALUES (%s, %s, 'Recorded', %s)",
        [
            f"{category}+position" if ":" in category else f"{category}:position",
            position,
            Jsonb({"position": position}),
        ],
    )


@pytest.fixture
def message_db(empty_database_url):
    """Give a connection to a database that Message DB set up."""
    with connect(empty_database_url, autocommit=True) as connection:
        imitate(connection)
        yield connection


def test_eventides_position_counts_until_our_consumer_has_run(message_db, empty_database_url):
    """Until our consumer of a category has run, Eventide's position counts."""

    def reached():
        with exported_snapshot(empty_database_url) as snapshot:
            consumed = snapshot.progress(account).consumed
        return [consumed[name].position for name in ("account:command", RESERVED)]

    recorded(message_db, "account:command", 40)
    recorded(message_db, RESERVED, 30)
    assert reached() == [40, 30]
    attach(message_db)
    assert reached() == [40, 30]
    # One that has joined its group, and has no partition yet.
    message_db.execute(
        "SELECT reservation.join_group('account', 'account:command', 1, 'p', NULL, '1 min', NULL)"
    )
    assert reached() == [40, 30]
    batch(message_db, "account:command").run(10)
    assert reached() == [0, 30]
    message_db.execute("DELETE FROM message_store.messages")
    assert reached() == [0, 0]
