"""The verdict on each command and reservation, on rows made by hand."""

import pytest

from spark_jobs.reconcile import count_up, findings, initiated, judge

pytestmark = pytest.mark.spark

COLUMNS = (
    "global_position bigint, position bigint, stream_name string, type string, id string, "
    "causation bigint, key_category string, key_stream string, content string"
)
POSITION = 100
KEY = "t-1+k"


def command(global_position, content="same", key=KEY, type_="Deposit"):
    """Return a command's row."""
    name = f"id{global_position}"
    return (global_position, 0, "a:command-1", type_, name, None, "t", key, content)


def reservation(global_position, content="same", stream=KEY, position=0, type_="Deposit"):
    """Return a reservation's row."""
    name = f"id{global_position}"
    return (global_position, position, stream, type_, name, None, None, None, content)


CASES = {
    "nothing": ([], [], {}),
    "reserved": ([command(1)], [reservation(2)], {"commands": 1, "keys": 1, "reserved": 1}),
    "duplicates": (
        [command(1), command(3), command(200)],
        [reservation(2)],
        {"commands": 3, "keys": 1, "reserved": 1, "duplicates": 2},
    ),
    "missing": (
        [command(1), command(2)],
        [],
        {"commands": 2, "keys": 1, "missing": 1, "duplicates": 1},
    ),
    "read up to and including the position": (
        [command(100), command(101, key="t-1+other")],
        [],
        {"commands": 2, "keys": 2, "missing": 1, "pending": 1},
    ),
    "orphan": ([], [reservation(2)], {"orphans": 1}),
    "an orphan's further messages are another finding": (
        [],
        [reservation(2), reservation(3, position=1)],
        {"orphans": 1, "multiple": 1},
    ),
    "more than one message is one stream": (
        [command(1)],
        [reservation(2), reservation(3, position=1), reservation(4, position=2)],
        {"commands": 1, "keys": 1, "reserved": 1, "multiple": 1},
    ),
    "conflict with the reservation": (
        [command(1), command(3, "other"), command(4)],
        [reservation(2)],
        {"commands": 3, "keys": 1, "reserved": 1, "conflicts": 1, "duplicates": 1},
    ),
    "the reserved command need not be the first": (
        [command(1, "other"), command(3)],
        [reservation(4)],
        {"commands": 2, "keys": 1, "reserved": 1, "conflicts": 1},
    ),
    "another type is a conflict": (
        [command(1), command(3, type_="Withdraw")],
        [reservation(2)],
        {"commands": 2, "keys": 1, "reserved": 1, "conflicts": 1},
    ),
    "conflict before the reservation": (
        [command(101), command(102, "other"), command(103)],
        [],
        {"commands": 3, "keys": 1, "pending": 1, "conflicts": 1, "duplicates": 1},
    ),
    "a reservation that says something else": (
        [command(1)],
        [reservation(2, "tampered")],
        {"commands": 1, "keys": 1, "reserved": 1, "conflicts": 1},
    ),
    "commands without a key stand alone": (
        [command(1, key=None), command(2, key=None), command(101, key=None)],
        [],
        {"commands": 3, "keyless": 3, "missing": 2, "pending": 1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_row_is_counted_once_under_its_verdict(spark, name):
    """Each kind of finding, alone and beside others."""
    commands, reservations, expected = CASES[name]
    judged = judge(
        spark.createDataFrame(commands, COLUMNS),
        spark.createDataFrame(reservations, COLUMNS),
        POSITION,
    )
    counted = count_up(judged, "a:command", "t")
    counts = {
        field: getattr(counted, field)
        for field in counted.__dataclass_fields__
        if not field.endswith("category")
    }
    assert {field: count for field, count in counts.items() if count} == expected
    violations = {"missing", "orphans", "multiple", "conflicts"} & set(expected)
    assert counted.in_order == (not violations)


def test_a_dead_letter_is_neither_missing_nor_pending(spark):
    """Nor is it one any more once its key is reserved, by itself or by a reissue."""
    commands = [
        command(1),
        command(2, key="t-1+x"),
        command(3, key=None),
        command(101, key="t-2+x"),
    ]
    judged = judge(
        spark.createDataFrame(commands, COLUMNS),
        spark.createDataFrame([reservation(4)], COLUMNS),
        POSITION,
        [1, 3, 101],
    )
    counted = count_up(judged, "a:command", "t")
    assert (counted.reserved, counted.dead, counted.missing, counted.pending) == (1, 2, 1, 0)
    assert findings(judged, "a:command", "t").count() == 1


def test_the_findings_name_the_messages(spark):
    """Each with its stream, position and id, to be looked up."""
    judged = judge(
        spark.createDataFrame([command(1), command(2, "other"), command(3, key="t-x")], COLUMNS),
        spark.createDataFrame(
            [reservation(4), reservation(5, position=1), reservation(6, stream="t-orphan")],
            COLUMNS,
        ),
        POSITION,
    )
    found = findings(judged, "a:command", "t").collect()
    assert {(row.finding, row.message_id, row.key_stream) for row in found} == {
        ("conflict", "id2", KEY),
        ("missing", "id3", "t-x"),
        ("multiple", "id5", KEY),
        ("orphan", "id6", "t-orphan"),
    }
    assert {(row.command_category, row.reservation_category) for row in found} == {
        ("a:command", "t")
    }


def count_initiated(spark, opens, streams):
    """Return what became of commands that initiate."""
    commands = spark.createDataFrame(opens, COLUMNS)
    firsts = initiated(commands, spark.createDataFrame(streams, COLUMNS))
    return count_up(judge(commands, firsts, POSITION), "a:command", "a")


def test_a_stream_that_a_command_initiated_says_what_that_command_says(spark):
    """Opened does not look like Open, but follows it."""
    opens = [
        command(1, key="a-1", type_="Open"),
        command(2, key="a-1", type_="Open"),
        command(3, "other", key="a-1", type_="Open"),
        command(4, key="a-2", type_="Open"),
        command(5, key="a-3", type_="Open"),
    ]
    streams = [
        (6, 0, "a-1", "Opened", "id6", 1, None, None, "opened"),
        (7, 1, "a-1", "Deposited", "id7", 50, None, None, "deposited"),
        (8, 0, "a-2", "Deposited", "id8", 51, None, None, "deposited"),
        (9, 0, "a-9", "Deposited", "id9", 52, None, None, "deposited"),
    ]
    counted = count_initiated(spark, opens, streams)
    # a-1 was opened once; a-2 was started by something else, so its Open had no effect; a-3 is
    # lost; a-9 was never to be opened.
    assert (counted.commands, counted.keys, counted.duplicates) == (5, 3, 1)
    assert (counted.reserved, counted.missing, counted.conflicts) == (2, 1, 2)
    assert (counted.orphans, counted.multiple) == (0, 0)


def test_pseudo_events_start_no_stream(spark):
    """What follows them did; and a stream of nothing else waits for its command."""
    opens = [command(3, key="a-1", type_="Open"), command(90, key="a-2", type_="Open")]
    streams = [
        (2, 0, "a-1", "PseudoEvent", "id2", 1, None, None, "{}"),
        (4, 1, "a-1", "Opened", "id4", 3, None, None, "opened"),
        (5, 2, "a-1", "PseudoEvent", "id5", 1, None, None, "{}"),
        (6, 0, "a-2", "PseudoEvent", "id6", 1, None, None, "{}"),
    ]
    counted = count_initiated(spark, opens, streams)
    assert (counted.reserved, counted.missing, counted.multiple) == (1, 1, 0)
    assert (counted.conflicts, counted.orphans) == (0, 0)
