"""The verdict on each command and reservation, on messages made by hand."""

import math
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from reservation import Component, MessageIdInEvents
from spark_jobs.analysis.commands import CommandsJob
from spark_jobs.analysis.sketches import grouping
from spark_jobs.analysis.verdicts import fingerprints
from spark_jobs.analysis.verdicts.prefilter import GroupSums
from spark_jobs.reconciliation.full_run import FullRun
from spark_jobs.snapshot.progress import Consumed, Progress
from tests.spark.messages import message, reading
from tests.spark.messages import whole as prefiltered

pytestmark = pytest.mark.spark

POSITION = 100
BATCH_SIZE = "spark.sql.inMemoryColumnarStorage.batchSize"
KEY = "t-1+k"


@dataclass
class Deposit:
    a_id: str
    key: str


@dataclass
class Withdraw:
    a_id: str
    key: str


@dataclass
class Open:
    a_id: str


@dataclass
class Close:
    a_id: str


def component(once=None):
    """Return a component that reserves two commands and initiates with one."""
    made = Component("a", id="a_id")
    made.reserve(Deposit, Withdraw, into="t", entity="a_id", key="key")
    made.initiate(Open)(lambda command, context: None)
    made.handle(Close, once=once)(lambda command, entity, context: None)
    return made


def command(global_position, content="same", key=KEY, type_="Deposit"):
    """Return a command's row."""
    category = "a" if type_ == "Open" else "t"
    return message(
        global_position,
        "a:command-1",
        type_,
        key_category=category,
        key_stream=key,
        content=content,
    )


def reservation(global_position, content="same", stream=KEY, position=0, type_="Deposit"):
    """Return a reservation's row."""
    return message(global_position, stream, type_, position=position, content=content)


def event(global_position, stream, causation, type_="Opened", position=0):
    """Return an event's row."""
    return message(global_position, stream, type_, causation=causation, position=position)


CASES = {
    "nothing": ([], {}),
    "reserved": ([command(1), reservation(2)], {"commands": 1, "keys": 1, "reserved": 1}),
    "duplicates": (
        [command(1), command(3), command(200), reservation(2)],
        {"commands": 3, "keys": 1, "reserved": 1, "duplicates": 2},
    ),
    "missing": (
        [command(1), command(2)],
        {"commands": 2, "keys": 1, "missing": 1, "duplicates": 1},
    ),
    "read up to and including the position": (
        [command(100), command(101, key="t-1+other")],
        {"commands": 2, "keys": 2, "missing": 1, "pending": 1},
    ),
    "orphan": ([reservation(2)], {"orphans": 1}),
    "an orphan's further messages are another finding": (
        [reservation(2), reservation(3, position=1)],
        {"orphans": 1, "multiple": 1},
    ),
    "more than one message is one stream": (
        [command(1), reservation(2), reservation(3, position=1), reservation(4, position=2)],
        {"commands": 1, "keys": 1, "reserved": 1, "multiple": 1},
    ),
    "conflict with the reservation": (
        [command(1), command(3, "other"), command(4), reservation(2)],
        {"commands": 3, "keys": 1, "reserved": 1, "conflicts": 1, "duplicates": 1},
    ),
    "the reserved command need not be the first": (
        [command(1, "other"), command(3), reservation(4)],
        {"commands": 2, "keys": 1, "reserved": 1, "conflicts": 1},
    ),
    "another type is a conflict": (
        [command(1), command(3, type_="Withdraw"), reservation(2)],
        {"commands": 2, "keys": 1, "reserved": 1, "conflicts": 1},
    ),
    "conflict before the reservation": (
        [command(101), command(102, "other"), command(103)],
        {"commands": 3, "keys": 1, "pending": 1, "conflicts": 1, "duplicates": 1},
    ),
    "a reservation that says something else": (
        [command(1), reservation(2, "tampered")],
        {"commands": 1, "keys": 1, "reserved": 1, "conflicts": 1},
    ),
    "commands without a key stand alone": (
        [command(1, key=None), command(2, key=None), command(101, key=None)],
        {"commands": 3, "keyless": 3, "missing": 2, "pending": 1},
    ),
    "a type that is not reserved there is neither a reservation nor an orphan": (
        [command(1), reservation(2, type_="Audit"), reservation(3, stream="t-x", type_="Open")],
        {"commands": 1, "keys": 1, "missing": 1, "wrong_type": 2},
    ),
}


def judged(spark, messages, letters=(), once=None, **consumed):
    """Return the counts and findings for messages in the store."""
    progress = Progress({"a:command": Consumed(POSITION, letters=letters, **consumed)})
    job = CommandsJob(component(once), "", Path())
    whole = FullRun(reading(spark, messages), progress)
    return job.results(whole.take(job)), whole.findings().collect()


def counts_of(result):
    """Return the counts that are not 0."""
    return {
        name: count
        for name in result.__dataclass_fields__
        if not name.endswith("category")
        and name != "initiates"
        and (count := getattr(result, name))
    }


VIOLATIONS = {"missing", "orphans", "multiple", "conflicts", "wrong_type"}


@pytest.mark.parametrize("name", CASES)
def test_every_row_is_counted_once_under_its_verdict(spark, name):
    """Every command and reservation is counted once, under its verdict."""
    messages, expected = CASES[name]
    (result, initiated), findings = judged(spark, messages)
    assert counts_of(result) == expected
    assert counts_of(initiated) == {}
    assert bool(findings) == bool(VIOLATIONS & set(expected))


def test_a_dead_letter_is_neither_missing_nor_pending(spark):
    """A dead letter is neither missing nor pending, until its key is reserved."""
    messages = [
        command(1),
        command(2, key="t-1+x"),
        command(3, key=None),
        command(101, key="t-2+x"),
        reservation(4),
    ]
    (result, _), findings = judged(spark, messages, [1, 3, 101])
    assert (result.reserved, result.dead, result.missing, result.pending) == (1, 2, 1, 0)
    assert len(findings) == 1


def test_the_findings_name_the_messages(spark):
    """Each finding has the stream, position and id of its message."""
    _, findings = judged(
        spark,
        [
            command(1),
            command(2, "other"),
            command(3, key="t-x"),
            reservation(4),
            reservation(5, position=1),
            reservation(6, stream="t-orphan"),
            reservation(7, stream="t-wrong", type_="Audit"),
        ],
    )
    assert {(row.finding, row.message_id, row.key_stream) for row in findings} == {
        ("conflict", "id2", KEY),
        ("missing", "id3", "t-x"),
        ("multiple", "id5", KEY),
        ("orphan", "id6", "t-orphan"),
        ("wrong-type", "id7", "t-wrong"),
    }
    assert {(row.command_category, row.reservation_category) for row in findings} == {
        ("a:command", "t")
    }


def test_an_initiated_stream_is_compared_with_its_command(spark):
    """A stream's first event is compared with the content of the command it follows."""
    messages = [
        command(1, key="a-1", type_="Open"),
        command(2, key="a-1", type_="Open"),
        command(3, "other", key="a-1", type_="Open"),
        command(4, key="a-2", type_="Open"),
        command(5, key="a-3", type_="Open"),
        event(6, "a-1", 1),
        event(7, "a-1", 50, "Deposited", 1),
        event(8, "a-2", 51, "Deposited"),
        event(9, "a-9", 52, "Deposited"),
    ]
    (_, counted), _ = judged(spark, messages)
    # a-1 was opened once; a-2 was started by something else, so its Open had no effect; a-3 is
    # lost; a-9 was never to be opened.
    assert (counted.commands, counted.keys, counted.duplicates) == (5, 3, 1)
    assert (counted.reserved, counted.missing, counted.conflicts) == (2, 1, 2)
    assert (counted.orphans, counted.multiple) == (0, 0)


def test_pseudo_events_start_no_stream(spark):
    """Pseudo events do not start a stream."""
    messages = [
        command(3, key="a-1", type_="Open"),
        command(90, key="a-2", type_="Open"),
        event(2, "a-1", 1, "PseudoEvent"),
        event(4, "a-1", 3, "Opened", 1),
        event(5, "a-1", 1, "PseudoEvent", 2),
        event(6, "a-2", 1, "PseudoEvent"),
    ]
    (_, counted), _ = judged(spark, messages, once=MessageIdInEvents())
    assert (counted.reserved, counted.missing, counted.multiple) == (1, 1, 0)
    assert (counted.conflicts, counted.orphans) == (0, 0)


RECORDED = [
    command(3),
    reservation(4),
    command(5, "other"),
    command(6, "other"),
    command(7),
    command(101, "other"),
]


@pytest.mark.parametrize(
    ("letters", "consumed", "found"),
    [
        ([], {"conflicts": [5, 6], "first_position": 0}, set()),
        ([], {"conflicts": [5], "first_position": 0}, {6}),
        ([], {"conflicts": [], "first_position": 0}, {5, 6}),
        # Of what others have read nothing is recorded.
        ([], {"conflicts": [], "first_position": 5}, {6}),
        ([], {"conflicts": [], "first_position": None}, set()),
        # A dead letter itself says why the consumer went on.
        ([5, 6], {"conflicts": [], "first_position": 0}, set()),
        # Recorded conflicts that are none count, whoever read them; unread commands do not.
        ([], {"conflicts": [3, 5, 6, 7], "first_position": 0}, {3, 7}),
        ([], {"conflicts": [5, 6, 7, 101], "first_position": 50}, {7}),
    ],
)
def test_conflicts_are_compared_with_those_that_the_consumer_recorded(
    spark, letters, consumed, found
):
    """Each command for which computed and recorded conflicts differ is a finding."""
    (counted, _), findings = judged(spark, RECORDED, letters, **consumed)
    assert counted.conflicts == 3
    assert counted.conflict_mismatches == len(found)
    mismatches = [row for row in findings if row.finding == "conflict-mismatch"]
    assert {row.global_position for row in mismatches} == found
    conflicts = [row.global_position for row in findings if row.finding == "conflict"]
    assert sorted(conflicts) == [5, 6, 101]


def test_a_key_with_a_recorded_conflict_is_examined(spark):
    """A key with a recorded conflict is examined even if its commands agree."""
    messages = [command(1), reservation(2), command(3)]
    progress = Progress({"a:command": Consumed(POSITION, conflicts=[3], first_position=0)})
    job = CommandsJob(component(), "", Path())
    taking = prefiltered(spark, messages, component(), progress)
    (counted, _) = job.results(taking.take(job))
    assert (counted.duplicates, counted.conflict_mismatches) == (1, 1)
    assert [row.global_position for row in taking.findings().collect()] == [3]


def test_long_rows_are_cached_a_few_at_a_time(spark):
    """What Spark caches together is in memory as a whole, which would be 10,000 rows."""
    progress = Progress({"a:command": Consumed(POSITION)})
    made = fingerprints.of_messages(reading(spark, [command(1)]), component(), progress, "", None)

    def seen(sketches):
        rows = grouping.summed(made.mapInArrow, sketches, parts=1)
        return reduce(DataFrame.union, [rows] * 20).coalesce(1)

    before = spark.conf.get(BATCH_SIZE)
    sums = GroupSums([CommandsJob(component(), "", Path())], seen, progress)
    rows = sums.kept.count()
    cached = sums.kept._jdf.queryExecution().withCachedData().cacheBuilder()
    assert cached.cachedColumnBuffers().count() == math.ceil(rows / 8) > 1
    assert spark.conf.get(BATCH_SIZE) == before
    sums.kept.unpersist()
