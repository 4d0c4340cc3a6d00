"""How far consumers are, by partition; where none of ours has run, as Eventide's positions say."""

import pytest
from psycopg import connect

from bank import account
from reservation.admin import attach
from tests.apps.bank import RESERVED, drain
from tests.spark.builders import ROOT, insert
from tests.support.message_db import imitate
from tests.support.stored_positions import store_position

APP = "tests.spark.keyed:sending"
OTHER = "0f5ba3a5-3c5c-4d3c-9a55-2a5a0e3dbb5f"
STREAMS = ["", "-", "-a", "-a+1", "-a+2", "-b", "-b+x+y", "-c", "-d", "-e", "-g-h", "-ü", "-+z"]


@pytest.fixture
def missing(reconcile):
    """Give the global positions of the commands that are missing."""

    def run():
        found = reconcile(app=APP, app_dir=ROOT)
        assert found.error == ""
        return [at for _, at in found.findings]

    return run


def group(connection, *positions, former_positions=None, former_position_ids=None, ids=()):
    """Give a consumer partitions at these positions."""
    connection.execute(
        "INSERT INTO reservation.groups "
        "(consumer, category, partitions, former_positions, former_position_ids) "
        "VALUES ('thing', 'thing:command', %s, %s, %s)",
        [len(positions), former_positions, former_position_ids],
    )
    for partition, position in enumerate(positions):
        at = ids[partition] if ids else None
        store_position(connection, "thing", "thing:command", position, partition, message_id=at)
    # Those of other consumers, and of other categories, say nothing about it.
    for consumer, category in (("a", "thing"), ("z", "thing"), ("thing", "a"), ("thing", "z")):
        store_position(connection, consumer, f"{category}:command", 99)


# Messages that the partitions at these positions have read.
READ = """
SELECT m.global_position FROM message_store.messages m
WHERE m.global_position <= (%(positions)s::bigint[])[
        1 + reservation.partition_of(m.stream_name, cardinality(%(positions)s))]
   OR %(former_positions)s::bigint[] IS NOT NULL
      AND m.global_position <= (%(former_positions)s::bigint[])[
        1 + reservation.partition_of(m.stream_name, cardinality(%(former_positions)s::bigint[]))]
ORDER BY m.global_position
"""


def letter(connection, at, id_):
    """Store a dead letter of the command at a position."""
    connection.execute(
        "INSERT INTO reservation.dead_letters (consumer, category, global_position, message_id, "
        "stream_name, type, state, reason, process) SELECT 'thing', 'thing:command', "
        "global_position, coalesce(%s, id), stream_name, type, 'dead', 'handler', 'p' "
        "FROM message_store.messages WHERE global_position = %s",
        [id_, at],
    )


def test_each_command_is_judged_by_the_position_of_its_partition(connection, missing):
    """A command is missing if its own partition has passed it, before or after a change of them.

    A dead letter excuses it, and one of another log, in whose place it is, does not.
    """
    for n, stream in enumerate(STREAMS):
        insert(connection, f"thing:command{stream}", "Send", {"thingId": "1", "key": f"{n}"})
    positions, former = [5, 9, 9], [12, 3]
    group(connection, *positions, former_positions=former)
    read = connection.execute(READ, {"positions": positions, "former_positions": former}).fetchall()
    excused, other, *rest = [at for (at,) in read]
    assert 1 < len(rest) < len(STREAMS) - 2
    letter(connection, excused, None)
    letter(connection, other, OTHER)
    assert missing() == [other, *rest]


@pytest.mark.parametrize(
    ("position", "of_group"),
    [(1, {"former_positions": [2], "former_position_ids": [OTHER]}), (2, {"ids": [OTHER]})],
    ids=["former_positions", "own"],
)
def test_a_position_of_another_log_is_an_error(connection, reconcile, position, of_group):
    """A position whose message is another one makes no message count as read."""
    for n in range(3):
        insert(connection, "thing:command-1", "Send", {"thingId": "1", "key": f"{n}"})
    group(connection, position, **of_group)
    found = reconcile(app=APP, app_dir=ROOT)
    assert found.status == 2
    assert "thing of thing:command stands at " in found.error


def test_eventides_position_counts_until_our_consumer_has_run(spark_database, reconcile):
    """In a store that is not ours ages count, then Eventide's positions, then those of ours."""

    def counts(*options):
        found = reconcile(*options)
        assert found.error == ""
        return found.counts[0]["missing"], found.counts[0]["pending"]

    with connect(spark_database.renew(is_empty=True), autocommit=True) as connection:
        imitate(connection)
        for n in range(1, 4):
            data = {"depositId": f"d{n}", "accountId": "123", "amount": 1}
            insert(connection, "account:command-123", "Deposit", data)
        connection.execute(
            "UPDATE message_store.messages SET time = time - interval '2 days' "
            "WHERE global_position = 1"
        )
        assert counts("--grace", "1d") == (1, 2)
        recorded = {"account:command+position": 2, f"{RESERVED}:position": 0}
        for stream, position in recorded.items():
            insert(connection, stream, "Recorded", {"position": position})
        assert counts() == (2, 1)
        attach(connection)
        assert counts() == (2, 1)
        drain(connection, account)
        assert counts() == (0, 0)
