"""How long commands took, how many were sent and who sent again, compared with plain Python."""

import json
import math
import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pyarrow.parquet as pq

from tests.apps.bank import drain
from tests.spark.builders import ROOT, insert
from tests.support.controls import COMMANDS, deposit, open_

NINE = datetime(2024, 2, 29, 9, tzinfo=UTC)
# Few values, so that hours, times and causes meet, and gaps are on both sides of ten seconds.
SECONDS = [0, 0.25, 1, 5, 10, 10.000001, 15, 21, 59, 3599, 3600, 3601, 9000]
APP = "tests.spark.shelf:component"


def at(seconds):
    """Return the time so many seconds after nine."""
    return NINE + timedelta(seconds=seconds)


def iso(seconds):
    return at(seconds).isoformat()


def drawn(chance, number):
    """Draw commands: when each was sent, by whom, and when what follows from it was written."""
    return [
        {
            "type": chance.choice(["Deposit", "Withdraw"]),
            "sent": chance.choice(SECONDS),
            "key": chance.choice(["k1", "k2", "k3", "k4", None]),
            "sender": chance.choice(["bank", "shop", None]),
            "copy": chance.choice([None, *SECONDS]),
            "events": chance.choices(SECONDS, k=chance.randrange(3)),
        }
        for _ in range(number)
    ]


def plant(connection, history):
    """Write the commands, their copies and events."""
    times = {}

    def write(stream, type_, data, cause, seconds):
        metadata = {} if cause is None else {"causationMessageGlobalPosition": cause}
        position = insert(connection, stream, type_, data, metadata)
        times[position] = at(seconds)
        return position

    for command in history:
        data = {"aId": "1", "key": command["key"], "says": ""}
        sender = command["sender"] and f"{command['sender']}-1"
        cause = insert(
            connection,
            "a:command-1",
            command["type"],
            data,
            {"correlationStreamName": sender} if sender else {},
        )
        times[cause] = at(command["sent"])
        command["position"] = cause
        if command["copy"] is not None:
            cause = write(f"t-1+{command['key']}", command["type"], data, cause, command["copy"])
        for seconds in command["events"]:
            write("a-1", "Done", {}, cause, seconds)
    with connection.cursor() as cursor:
        cursor.executemany(
            "UPDATE message_store.messages SET time = %s AT TIME ZONE 'UTC' "
            "WHERE global_position = %s",
            [(time, position) for position, time in times.items()],
        )


def nearest_rank(values, part):
    """Return the value of the nearest rank."""
    return sorted(values)[math.ceil(part * len(values)) - 1]


def expected_latency(history):
    """Return the latencies by stage, type and hour, computed in plain Python."""
    taken = {}
    for command in history:
        sent, copied, handled = (
            command["sent"],
            command["copy"],
            next(iter(command["events"]), None),
        )
        stages = {
            "reserved": None if copied is None else copied - sent,
            "handled": None if handled is None else handled - (sent if copied is None else copied),
            "whole": None if handled is None else handled - sent,
        }
        hour = iso(sent // 3600 * 3600)
        for stage, value in stages.items():
            for group in {(t, h) for t in (None, command["type"]) for h in (None, hour)}:
                if value is not None:
                    taken.setdefault((stage, *group), []).append(max(0, round(value, 6)))
    parts = (0.5, 0.95, 0.99, 1)
    return {
        group: (len(values), *(nearest_rank(values, part) for part in parts))
        for group, values in taken.items()
    }


def expected_volume(history, conflicts):
    """Return what was sent in each hour, computed in plain Python."""
    found, seen = {}, set()
    for command in sorted(history, key=lambda command: command["sent"]):
        hour = found.setdefault(iso(command["sent"] // 3600 * 3600), [0, 0, 0])
        hour[0] += 1
        hour[2] += bool(command["events"])
        if command["position"] not in conflicts:
            hour[1] += command["key"] in seen
            seen |= {command["key"]} - {None}
    return found


def expected_reissues(history, conflicts):
    """Return senders, the longest gap and span, and bursts, computed in plain Python."""
    counts, gaps, spans, bursts, keys, seen = {}, [], [], [], {}, set()
    for command in sorted(history, key=lambda command: command["sent"]):
        who = command["sender"], command["type"]
        counts.setdefault(who, [0, 0, 0, 0, None, 0])[0] += 1
        if command["key"] is not None:
            keys.setdefault(f"t-1+{command['key']}", []).append((command["sent"], who))
            if command["position"] not in conflicts:
                counts[who][3] += command["key"] in seen
                seen.add(command["key"])
    for key, sends in keys.items():
        counts[sends[0][1]][1] += 1
        if len(sends) > 1:
            counts[sends[1][1]][2] += 1
            spans.append((round(sends[-1][0] - sends[0][0], 6), key))
        together = [sends[:1]]
        for (before, _), (time, who) in pairwise(sends):
            gaps.append((gap := round(time - before, 6), key))
            counts[who][4] = max(gap, counts[who][4] or 0)
            if gap <= 10:
                together[-1].append((time, who))
            else:
                together.append([(time, who)])
        for burst in together:
            if len(burst) > 1:
                counts[burst[-1][1]][5] = max(counts[burst[-1][1]][5], len(burst))
                bursts.append((key, len(burst), iso(burst[0][0]), iso(burst[-1][0])))
    return {who: tuple(figures) for who, figures in counts.items()}, gaps, spans, bursts


def test_latency_volume_and_reissues_of_any_history(connection, reconcile, tmp_path):
    """They are as plain Python computes them; negative times count as 0."""
    history = drawn(random.Random(2), 60)
    plant(connection, history)
    found = reconcile("--details", "--findings", tmp_path / "findings", app=APP, app_dir=ROOT)
    assert found.error == ""
    report = found.report
    rows = pq.read_table(tmp_path / "findings").to_pylist()
    conflicts = {row["global_position"] for row in rows if row["finding"] == "conflict"}
    assert conflicts
    names = ("count", "p50Seconds", "p95Seconds", "p99Seconds", "maxSeconds")
    latency = {
        (one["stage"], one["type"], one["hour"]): tuple(one[name] for name in names)
        for one in report["latency"]
    }
    assert len(latency) == len(report["latency"])
    assert latency == expected_latency(history)
    volume = {
        one["hour"]: [one["commands"], one["duplicates"], one["handled"]]
        for one in report["volume"]
    }
    assert volume == expected_volume(history, conflicts)
    assert [*volume] == sorted(volume)

    reissues = report["reissues"]
    senders, gaps, spans, bursts = expected_reissues(history, conflicts)
    names = ("commands", "keys", "reissued", "duplicates", "longestGapSeconds", "largestBurst")
    assert {
        (one["sender"], one["type"]): tuple(one[name] for name in names)
        for one in reissues["senders"]
    } == senders
    for name in ("keys", "duplicates"):
        counted = sum(one[name] for one in (*report["categories"], *report["initiations"]))
        assert sum(one[name] for one in reissues["senders"]) == counted
    assert sum(one["duplicates"] for one in report["volume"]) == counted
    longest = (reissues["longestGapSeconds"], reissues["longestGapKey"])
    assert longest in gaps
    assert longest[0] == max(gap for gap, _ in gaps)
    widest = (reissues["longestSpanSeconds"], reissues["longestSpanKey"])
    assert widest in spans
    assert widest[0] == max(span for span, _ in spans)
    found = [
        (one["keyStream"], one["sends"], one["first"], one["last"]) for one in reissues["bursts"]
    ]
    assert sorted(found) == sorted(bursts)


def test_a_time_that_cannot_be_read_is_named_and_measured_nowhere(
    connection, command, store, tmp_path
):
    """The rest of the report stands, and a finding of such a message has no time."""
    store.write(
        [open_(), deposit("d1"), deposit("d1"), deposit("d1"), deposit("d2"), deposit("d3")],
        COMMANDS,
    )
    drain(connection)
    connection.execute(
        "UPDATE message_store.messages SET time = 'infinity' WHERE global_position = 3"
    )
    connection.execute(
        "UPDATE message_store.messages SET time = '0044-03-15 BC' "
        "WHERE stream_name = 'accountTransaction-123+d2'"
    )
    connection.execute("DELETE FROM message_store.messages WHERE global_position = 5")
    html = tmp_path / "report.html"
    done = command("reconcile", "bank:account", "--details", "--json", "--html", str(html))
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    reissues = report["reissues"]
    assert (reissues["untimed"], reissues["firstUntimed"]) == (1, 3)
    assert reissues["longestGapSeconds"] < 60
    assert [one["commands"] for one in report["volume"]] == [4]
    assert max(one["maxSeconds"] for one in report["latency"]) < 60
    (orphan,) = [one for one in report["samples"] if one["finding"] == "orphan"]
    assert orphan["time"] is None
    said = "1 command has a time outside of the years 1 to 9999, so it counts in no latency"
    assert said in html.read_text()
    shown = command("reconcile", "bank:account", "--details").stdout
    assert said in " ".join(shown.split())
