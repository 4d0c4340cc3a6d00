"""How long commands took and how many were sent, on rows made by hand and on rows made up."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.analysis import latency
from spark_jobs.analysis.latency import durations, latencies, volumes
from spark_jobs.common.result import Latency, Volume

pytestmark = pytest.mark.spark

COMMANDS = "global_position bigint, type string, time timestamp, key_stream string"
FOLLOWING = "global_position bigint, time timestamp, causation bigint"
NINE = datetime(2024, 2, 29, 9, tzinfo=UTC)
TEN = NINE + timedelta(hours=1)
MARKUP = "<script>alert('Deposit')</script>"


def at(seconds):
    """Return the time so many seconds after nine."""
    return NINE + timedelta(seconds=seconds)


def command(global_position, seconds, type_="Deposit", key="t-k"):
    """Return a command's row."""
    return (global_position, type_, at(seconds), key)


def follows(global_position, seconds, causation):
    """Return the row of a copy or an event."""
    return (global_position, at(seconds), causation)


def took(spark, commands, copies, events):
    """Return the result of `durations` for these rows."""
    return durations(
        spark.createDataFrame(commands, COMMANDS),
        spark.createDataFrame(copies, FOLLOWING),
        spark.createDataFrame(events, FOLLOWING),
    )


def rows(frame):
    """Return the rows with their times in seconds after nine."""

    def seconds(time):
        return None if time is None else (time.astimezone(UTC) - NINE).total_seconds()

    return sorted(
        (
            (row["type"], *(seconds(row[name]) for name in ("sent", "reserved", "handled")))
            for row in frame.collect()
        ),
        key=str,
    )


def test_commands_are_followed_by_copies_and_events(spark):
    """Each command has one row with its copy and event, if there are any."""
    commands = [
        command(1, 0, "reserved and handled"),
        command(2, 1, "reserved"),
        command(3, 2, "directly"),
        command(4, 3, "nowhere"),
        command(5, 4, "three events"),
        command(6, 5, "two copies"),
        command(7, 6, MARKUP),
        command(8, 7, None),
    ]
    copies = [
        follows(11, 10, 1),
        follows(12, 11, 2),
        follows(15, 12, 5),
        # The first in the store, not the one with the earliest time.
        follows(17, 13, 6),
        follows(16, 14, 6),
        follows(18, 15, 7),
        follows(19, 15.5, None),
        # A copy of what is not there.
        follows(20, 15.5, 99),
    ]
    events = [
        follows(31, 20, 11),
        follows(33, 21, 3),
        follows(37, 22, 15),
        follows(36, 23, 15),
        follows(35, 23, 15),
        follows(38, 24, 17),
        follows(39, 25, 8),
        follows(42, 28, None),
        follows(43, 29, 77),
        follows(44, 30, 42),
    ]

    assert rows(took(spark, commands, copies, events)) == sorted(
        [
            ("reserved and handled", 0, 10, 20),
            ("reserved", 1, 11, None),
            ("directly", 2, None, 21),
            ("three events", 4, 12, 23),
            ("two copies", 5, 14, 24),
            (MARKUP, 6, 15, None),
            ("", 7, None, 25),
        ],
        key=str,
    )


def test_latencies_of_hours_and_types(spark):
    """Each stage is reported for all, by type, by hour and by both; negative times count as 0."""
    commands = [command(1, 0), command(2, 1, MARKUP), command(3, 3600), command(4, 3601)]
    copies = [follows(11, 0.5, 1), follows(12, 0.75, 2), follows(13, 3604, 3)]
    events = [follows(21, 2.5, 11), follows(23, 3610, 13), follows(24, 3601, 4)]

    reported = latencies(took(spark, commands, copies, events))

    def one(stage, type_, hour, count, *figures):
        return Latency(stage, type_, hour, count, *figures)

    assert reported == [
        one("reserved", None, None, 3, 0.5, 4, 4, 4),
        one("reserved", MARKUP, None, 1, 0, 0, 0, 0),
        one("reserved", "Deposit", None, 2, 0.5, 4, 4, 4),
        one("reserved", None, NINE, 2, 0, 0.5, 0.5, 0.5),
        one("reserved", None, TEN, 1, 4, 4, 4, 4),
        one("reserved", MARKUP, NINE, 1, 0, 0, 0, 0),
        one("reserved", "Deposit", NINE, 1, 0.5, 0.5, 0.5, 0.5),
        one("reserved", "Deposit", TEN, 1, 4, 4, 4, 4),
        one("handled", None, None, 3, 2, 6, 6, 6),
        one("handled", "Deposit", None, 3, 2, 6, 6, 6),
        one("handled", None, NINE, 1, 2, 2, 2, 2),
        one("handled", None, TEN, 2, 0, 6, 6, 6),
        one("handled", "Deposit", NINE, 1, 2, 2, 2, 2),
        one("handled", "Deposit", TEN, 2, 0, 6, 6, 6),
        one("whole", None, None, 3, 2.5, 10, 10, 10),
        one("whole", "Deposit", None, 3, 2.5, 10, 10, 10),
        one("whole", None, NINE, 1, 2.5, 2.5, 2.5, 2.5),
        one("whole", None, TEN, 2, 0, 10, 10, 10),
        one("whole", "Deposit", NINE, 1, 2.5, 2.5, 2.5, 2.5),
        one("whole", "Deposit", TEN, 2, 0, 10, 10, 10),
    ]


def test_nothing(spark):
    """A store without messages has no latencies and no volumes."""
    assert latencies(took(spark, [], [], [])) == []
    assert volumes(spark.createDataFrame([], COMMANDS), []) == []


def test_volumes_of_hours(spark):
    """Duplicates count in the hour in which they were sent; commands without a key are none."""
    commands = [
        command(1, 0),
        command(2, 1),
        command(3, 3600),
        command(4, 3600, key="t-other"),
        command(5, 3599, key="t-other"),
        command(6, 3600, key=None),
        command(7, 3601, key=None),
        command(9, 10800, key="t-late"),
    ]
    handled = [
        Latency("whole", None, None, 9, 1, 1, 1, 1),
        Latency("whole", "Deposit", NINE, 1, 1, 1, 1, 1),
        Latency("whole", None, TEN, 2, 1, 1, 1, 1),
        Latency("reserved", None, NINE, 3, 1, 1, 1, 1),
    ]

    assert volumes(spark.createDataFrame(commands, COMMANDS), handled) == [
        Volume(NINE, 3, 1, 0),
        Volume(TEN, 4, 2, 2),
        Volume(NINE + timedelta(hours=3), 1, 0, 0),
    ]


def test_only_the_newest_hours_are_reported(spark, monkeypatch):
    """A long history is reported by its newest hours, and as a whole."""
    monkeypatch.setattr(latency, "HOURS", 2)
    commands = [command(n, n * 3600, key=f"t-{n}") for n in range(4)]
    events = [follows(10 + n, n * 3600 + 1, n) for n in range(4)]

    reported = latencies(took(spark, commands, [], events))
    newest = [NINE + timedelta(hours=n) for n in (2, 3)]

    whole = [row for row in reported if row.stage == "whole"]
    assert [(row.type, row.hour, row.count) for row in whole] == [
        (None, None, 4),
        ("Deposit", None, 4),
        *((None, hour, 1) for hour in newest),
        *(("Deposit", hour, 1) for hour in newest),
    ]
    counted = volumes(spark.createDataFrame(commands, COMMANDS), reported)
    assert counted == [Volume(hour, 1, 0, 1) for hour in newest]


def test_percentiles_of_many_commands_are_close(spark):
    """Percentiles of very many commands are approximate within a small error."""
    many = 100_000
    frame = spark.range(many).selectExpr(
        "concat('T', id % 2) AS type",
        "timestamp_micros(1700000000000000 + id) AS sent",
        "CAST(NULL AS timestamp) AS reserved",
        # In another order than that in which they were sent.
        f"timestamp_micros(1700000000000000 + id + id * 7919 % {many}) AS handled",
    )

    reported = [row for row in latencies(frame) if row.stage == "whole"]

    assert {(row.type, row.hour is None): row.count for row in reported} == {
        (None, True): many,
        (None, False): many,
        ("T0", True): many / 2,
        ("T1", True): many / 2,
        ("T0", False): many / 2,
        ("T1", False): many / 2,
    }
    for row in reported:
        assert row.max * 1e6 == pytest.approx(many - 1, abs=1)
        for rank, value in ((0.5, row.p50), (0.95, row.p95), (0.99, row.p99)):
            # Four times the error that is promised for 99 of 100.
            assert value * 1e6 / many == pytest.approx(rank, abs=4 * 0.0013)


# Few values, so that hours, times and causes meet.
seconds = st.sampled_from([0, 0.25, 1, 1, 59, 3599, 3600, 3601, 9000])
histories = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["Deposit", "Withdraw", MARKUP]),
            "sent": seconds,
            "key": st.sampled_from(["t-1", "t-2", "t-3", None]),
            "copy": st.none() | seconds,
            "events": st.lists(seconds, max_size=3),
        }
    ),
    min_size=20,
    max_size=80,
)


def nearest_rank(values, part):
    """Return the value of the nearest rank."""
    return sorted(values)[math.ceil(part * len(values)) - 1]


def expected_latencies(history):
    """Return the latencies, computed in plain Python."""
    taken = {}
    for command in history:
        sent, copy, handled = command["sent"], command["copy"], next(iter(command["events"]), None)
        stages = {
            "reserved": None if copy is None else copy - sent,
            "handled": None if handled is None else handled - (sent if copy is None else copy),
            "whole": None if handled is None else handled - sent,
        }
        hour = NINE + timedelta(hours=sent // 3600)
        for stage, value in stages.items():
            for group in {(t, h) for t in (None, command["type"]) for h in (None, hour)}:
                if value is not None:
                    taken.setdefault((stage, *group), []).append(max(0, value))
    return {
        Latency(
            *group,
            len(values),
            *(nearest_rank(values, part) for part in (0.5, 0.95, 0.99)),
            max(values),
        )
        for group, values in taken.items()
    }


def expected_volumes(history):
    """Return the volumes, computed in plain Python."""
    found, seen = {}, set()
    for command in sorted(history, key=lambda command: command["sent"]):
        hour = found.setdefault(NINE + timedelta(hours=command["sent"] // 3600), [0, 0, 0])
        hour[0] += 1
        hour[1] += command["key"] in seen
        hour[2] += bool(command["events"])
        seen |= {command["key"]} - {None}
    return [Volume(hour, *counts) for hour, counts in sorted(found.items())]


@settings(max_examples=4)
@given(history=histories)
def test_any_history(spark, history):
    """Any history gives the same as plain Python."""
    commands, copies, events = [], [], []
    for n, sent_command in enumerate(history, 1):
        commands.append(
            command(n * 10, sent_command["sent"], sent_command["type"], sent_command["key"])
        )
        if sent_command["copy"] is not None:
            copies.append(follows(n * 10 + 1, sent_command["copy"], n * 10))
        cause = n * 10 + (sent_command["copy"] is not None)
        events.extend(
            follows(n * 10 + 2 + m, sent, cause) for m, sent in enumerate(sent_command["events"])
        )

    reported = latencies(took(spark, commands, copies, events))

    assert len(reported) == len(set(reported))
    assert set(reported) == expected_latencies(history)
    counted = volumes(spark.createDataFrame(commands, COMMANDS), reported)
    assert counted == expected_volumes(history)
