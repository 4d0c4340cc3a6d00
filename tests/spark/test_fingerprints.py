"""Fingerprints of messages, which the server and Spark make of different things."""

import json
from dataclasses import dataclass

import pytest

from reservation import Component
from reservation.messages.pseudo_event import PSEUDO_EVENT
from spark_jobs.analysis.verdicts import fingerprints
from spark_jobs.common.declaration import Declaration
from spark_jobs.reconciliation.reading import union
from spark_jobs.reconciliation.reading.categories import Categories
from spark_jobs.reconciliation.reading.fingerprinting import ServerFingerprints, frame_of
from spark_jobs.snapshot.progress import Progress
from spark_jobs.snapshot.snapshot import exported_snapshot

pytestmark = pytest.mark.spark


@dataclass
class Open:
    thing_id: str


@dataclass
class Turn:
    thing_id: str
    key: str


@dataclass
class Shift:
    thing_id: str
    key: str
    by: int
    at: str


def component():
    """Return one that reserves within its command category and beside it, and initiates."""
    made = Component("thing", id="thing_id")
    made.initiate(Open)(lambda command, context: None)
    made.reserve(Turn, key="key")
    made.handle(Turn)(lambda command, entity, context: None)
    made.reserve(Shift, into="shifted", entity="thing_id", key="key", volatile="at")
    made.handle(Shift)(lambda command, entity, context: None)
    return made


def shift(key="k", by=1, at="now", **more):
    """Return the data of a command."""
    return {"thingId": "1", "key": key, "by": by, "at": at, **more}


COPY = {
    "localProperties": {"reserved": True},
    "causationMessageStreamName": "thing:command-1",
}
MESSAGES = [
    ("thing:command-1", "Open", {"thingId": "1"}, None),
    ("thing:command-1", "Shift", shift(), None),
    ("thing:command-1", "Shift", shift(at="later"), None),
    ("thing:command-2", "Shift", shift(), None),
    ("thing:command-1", "Shift", shift(by=2), None),
    ("thing:command-1", "Shift", shift(key=None), None),
    ("thing:command-1", "Shift", shift(key="k+k", more=[["a", "b"]]), None),
    ("thing:command-1", "Turn", {"thingId": "1", "key": "t"}, None),
    ("thing:command-1+t", "Turn", {"thingId": "1", "key": "t"}, COPY),
    ("thing:command-1", "Unknown", {}, None),
    ("shifted-1+k", "Shift", shift(at="then"), None),
    ("shifted-1+k", "Shift", shift(by=3), None),
    ("shifted-1+o", "Audit", {}, None),
    ("thing-1", "Opened", {}, {"causationMessageGlobalPosition": 1}),
    ("thing-1", "Shifted", {"by": 1}, {"causationMessageGlobalPosition": 11}),
    ("thing-1", "Shifted", {"by": 2}, {"causationMessageGlobalPosition": 11}),
    ("thing-2", "Shifted", {}, {}),
    ("thing-2", PSEUDO_EVENT, {}, {"causationMessageGlobalPosition": 12}),
    ("thing-3", PSEUDO_EVENT, {"rejected": "Shift", "reason": "no"}, None),
    ("thing-3", PSEUDO_EVENT, {"initiation": "true"}, {"localProperties": {"first": 0}}),
    ("thing-3", PSEUDO_EVENT, {"initiation": True}, {"localProperties": {"first": 2}}),
    ("thing-3", "Opened", {"initiation": True}, {"localProperties": {"first": "3"}}),
    ("thing-4", PSEUDO_EVENT, {"rejected": "Open", "reason": "no", "initiation": True}, None),
]
# Of these only what is equal matters, not what it is.
HASHES = ("key", "says", "kind", "identity")


def written(connection):
    """Write the messages, the first at global position 1."""
    for stream, type_, data, metadata in MESSAGES:
        connection.execute(
            "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, %s, %s)",
            [stream, type_, json.dumps(data), None if metadata is None else json.dumps(metadata)],
        )


def test_messages_that_are_looked_up_are_those_that_are_read(
    spark, spark_connection, spark_database_url
):
    """What is first of its stream, and says so itself, is found by its position too."""
    written(spark_connection)
    names, columns = ["thing:command", "shifted", "thing"], ["global_position", "is_first"]
    with exported_snapshot(spark_database_url) as snapshot:
        read = Categories(spark, snapshot, Declaration.of(component()), is_here=True)
        everything = spark.range(1, len(MESSAGES) + 1).withColumnRenamed("id", "global_position")
        for firsts_of in ([], ["thing"]):
            ranges, found = (
                sorted(map(tuple, reader(names, columns, firsts_of=firsts_of).collect()))
                for reader in (read, read.at(everything))
            )
            assert found == ranges
    assert [at for at, is_first in ranges if is_first and at > 13] == [14, 17, 19, 21, 23]


def test_an_archive_says_of_an_event_what_the_server_says(
    spark, spark_connection, spark_database_url
):
    """Only true makes a pseudo event start a stream, and only a number is a place; no text is."""
    written(spark_connection)
    columns = ["type", "position", "data", "metadata", "starts", "is_first"]
    with exported_snapshot(spark_database_url) as snapshot:
        read = Categories(spark, snapshot, Declaration.of(component()), is_here=True)
        messages = read(["thing:command", "shifted", "thing"], columns)
    archived = messages.select(union._starts(), union._is_first()).collect()
    stored = messages.select("starts", "is_first").collect()
    assert [tuple(row) for row in archived] == [tuple(row) for row in stored]
    assert len({*stored}) == 4


@pytest.mark.parametrize("progress", [Progress(), None])
def test_server_and_spark_agree_on_fingerprints(
    spark, spark_connection, spark_database_url, progress
):
    """Server and Spark agree on which fingerprints are equal, and on all other columns."""
    written(spark_connection)
    with exported_snapshot(spark_database_url) as snapshot:
        read = Categories(spark, snapshot, Declaration.of(component()))
        frames = (
            frame_of(ServerFingerprints(read, component(), progress, 1)),
            fingerprints.of_messages(read, component(), progress, "", None),
        )
        theirs, ours = (
            [row.asDict() for row in frame.orderBy("global_position").collect()] for frame in frames
        )
        again = fingerprints.of_messages(read, component(), progress, "", None)
        seeded = [row["says"] for row in again.orderBy("global_position").collect()]
    # Nobody can choose contents that collide, because the hashes differ in each run.
    assert all(
        fingerprint is None or fingerprint != row["says"]
        for fingerprint, row in zip(seeded, ours, strict=True)
    )
    assert [list(row) for row in theirs] == [list(row) for row in ours]
    for name in fingerprints.TYPES:
        made = [[row[name] for row in rows] for rows in (theirs, ours)]
        if name in HASHES:
            made = [[None if value is None else of.index(value) for value in of] for of in made]
        assert made[0] == made[1], name
    keys = [row["key"] for row in ours]
    # One key has three commands and two reservations, whose streams and senders differ.
    assert [keys.count(keys[n]) for n in (1, 2, 3, 4, 10, 11)] == [6] * 6
    assert keys[7] == keys[8] != keys[0] == keys[13]
    assert [n for n, key in enumerate(keys) if key is None] == [5, 9]
    says = [row["says"] for row in ours]
    assert says[1] == says[2] == says[10] != says[4]
    kinds = [row["kind"] for row in ours]
    assert kinds[14] == kinds[15] != kinds[16]
    assert kinds[17] is None
    for name in ("identity", "cardinal"):
        assert any(row[name] is not None for row in ours) == (progress is None)
