"""Who sends again, on rows made by hand and on rows made up."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.analysis import reissues as module
from spark_jobs.analysis.reissues import BURSTS, reissues
from spark_jobs.common.result import Burst, Reissues, Sender

pytestmark = pytest.mark.spark

COMMANDS = "global_position bigint, type string, time timestamp, sender string, key_stream string"
NINE = datetime(2024, 2, 29, 9, tzinfo=UTC)
MARKUP = "<b>Deposit</b>"


def at(seconds):
    """Return a time in seconds after nine."""
    return NINE + timedelta(seconds=seconds)


def gap(seconds):
    """Return a number of seconds."""
    return timedelta(seconds=seconds)


def send(global_position, seconds, key="t-1", sender="bank", type_="Deposit"):
    """Return a command's row."""
    return (global_position, type_, at(seconds), sender, key)


def found_in(spark, sends):
    """Return what is reported for these rows."""
    return reissues(spark.createDataFrame(sends, COMMANDS))


def test_nothing(spark):
    """A store without commands has no reissues."""
    assert found_in(spark, []) == Reissues([], None, None, [])


def test_nothing_sent_again(spark):
    """Keys that were sent once have no gap, nor have commands without a key."""
    sends = [send(1, 0), send(2, 1, "t-2"), send(3, 2, None), send(4, 3, None)]

    assert found_in(spark, sends) == Reissues(
        [Sender("bank", "Deposit", 4, 2, 0, 0, None, 0)], None, None, []
    )


def test_senders_gaps_and_bursts(spark):
    """Each sender and type is counted by itself; a gap of ten seconds is within a burst."""
    sends = [
        # Two bursts of one key, and one send between them that belongs to neither.
        *(send(1 + n, seconds) for n, seconds in enumerate([0, 10, 20, 30.000001, 100, 105])),
        # One time: the order is that of the store. The second send is another sender's.
        send(21, 50, "t-2", "bank"),
        send(22, 50, "t-2", None),
        send(23, 200, "t-2", "bank"),
        # The first send is the last that was written.
        send(32, 1000, "t-3", "shop", MARKUP),
        send(31, 4000.5, "t-3", "shop", MARKUP),
        send(40, 0, None, "shop", MARKUP),
        send(41, 0, None, "shop", MARKUP),
        send(51, 0, "t-4", None, "Close"),
    ]

    assert found_in(spark, sends) == Reissues(
        senders=[
            Sender("bank", "Deposit", 8, 2, 1, 6, gap(150), 3),
            Sender("shop", MARKUP, 4, 1, 1, 1, gap(3000.5), 0),
            Sender(None, "Deposit", 1, 0, 1, 1, gap(0), 2),
            Sender(None, "Close", 1, 1, 0, 0, None, 0),
        ],
        longest_gap=gap(3000.5),
        longest_gap_key="t-3",
        bursts=[
            Burst("t-1", 3, at(0), at(20)),
            Burst("t-2", 2, at(50), at(50)),
            Burst("t-1", 2, at(100), at(105)),
        ],
        longest_span=gap(3000.5),
        longest_span_key="t-3",
    )


def test_one_key_sent_very_often(spark):
    """A key that was sent 200,000 times is one burst of as many sends."""
    many = 200_000
    sends = spark.range(many).selectExpr(
        "id AS global_position",
        "'Deposit' AS type",
        "timestamp_micros(1709197200000000 + id * 1000000) AS time",
        "'bank' AS sender",
        "'t-1' AS key_stream",
    )

    assert reissues(sends) == Reissues(
        [Sender("bank", "Deposit", many, 1, 1, many - 1, gap(1), many)],
        gap(1),
        "t-1",
        [Burst("t-1", many, at(0), at(many - 1))],
        gap(many - 1),
        "t-1",
    )


def test_only_the_largest_bursts_and_the_busiest_senders_are_reported(spark, monkeypatch):
    """The lists are limited; the longest gap and the largest bursts cover all senders."""
    monkeypatch.setattr(module, "SENDERS", 2)
    sends = [
        send(100 * n + m, m, f"t-{n:02}", f"sender{n:02}") for n in range(30) for m in range(n + 1)
    ]
    # It sends again once only, but after a very long time.
    sends += [send(5000, 0, "t-late", "late"), send(5001, 10**6, "t-late", "late")]

    found = found_in(spark, sends)

    assert [(sender.sender, sender.duplicates) for sender in found.senders] == [
        ("sender29", 29),
        ("sender28", 28),
    ]
    assert (found.longest_gap, found.longest_gap_key) == (gap(10**6), "t-late")
    assert found.bursts == [
        Burst(f"t-{n:02}", n + 1, at(0), at(n)) for n in range(29, 29 - BURSTS, -1)
    ]


# Few values, so that keys meet and times are equal, and gaps are on both sides of ten seconds.
histories = st.lists(
    st.tuples(
        st.sampled_from([0, 5, 5, 10, 10.000001, 15, 21, 300, 86400]),
        st.sampled_from([f"t-{n}" for n in range(12)] + [None]),
        st.sampled_from(["bank", "shop", None]),
        st.sampled_from(["Deposit", MARKUP]),
    ),
    min_size=20,
    max_size=80,
)


def expected(history):
    """Return the reissues of sends in the order of the store, computed in plain Python."""
    counts, gaps, spans, bursts = {}, [], [], []
    keys = {}
    for seconds, key, sender, type_ in sorted(history, key=lambda send: send[0]):
        counts.setdefault((sender, type_), [0, 0, 0, 0, None, 0])[0] += 1
        if key is not None:
            keys.setdefault(key, []).append((at(seconds), (sender, type_)))
    for key, sends in keys.items():
        counts[sends[0][1]][1] += 1
        if len(sends) > 1:
            counts[sends[1][1]][2] += 1
            spans.append((sends[-1][0] - sends[0][0], key))
        together = [sends[:1]]
        for (before, _), (time, who) in pairwise(sends):
            passed = time - before
            gaps.append((passed, key))
            counts[who][3] += 1
            counts[who][4] = max(passed, counts[who][4] or gap(0))
            if passed <= gap(10):
                together[-1].append((time, who))
            else:
                together.append([(time, who)])
        for burst in together:
            if len(burst) > 1:
                (first, _), (last, who) = burst[0], burst[-1]
                counts[who][5] = max(counts[who][5], len(burst))
                bursts.append(Burst(key, len(burst), first, last))
    return (
        {Sender(*who, *figures) for who, figures in counts.items()},
        max(gaps, default=(None, None)),
        max(spans, default=(None, None)),
        sorted((burst.sends for burst in bursts), reverse=True)[:BURSTS],
        bursts,
    )


@settings(max_examples=5)
@given(history=histories)
def test_any_history(spark, history):
    """Any history gives the same as plain Python."""
    sends = [send(n, *sent) for n, sent in enumerate(history)]

    found = found_in(spark, sends)

    senders, longest, widest, sizes, bursts = expected(history)
    assert set(found.senders) == senders
    assert len(found.senders) == len(senders)
    assert (found.longest_gap, found.longest_gap_key) == longest
    assert (found.longest_span, found.longest_span_key) == widest
    assert [burst.sends for burst in found.bursts] == sizes
    assert set(found.bursts) <= set(bursts)
    for sender in found.senders:
        keyless = sum(
            key is None and (who, type_) == (sender.sender, sender.type)
            for _, key, who, type_ in history
        )
        assert sender.commands == keyless + sender.keys + sender.duplicates
