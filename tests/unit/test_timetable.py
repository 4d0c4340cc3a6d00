"""The times of a cron expression in a zone, also where the clock is changed, and what is due."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from reservation.recurring.due import LATE, due_tick
from reservation.recurring.timetable import Timetable

BERLIN, LORD_HOWE, SANTIAGO = "Europe/Berlin", "Australia/Lord_Howe", "America/Santiago"
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
NIGHTLY = Timetable("0 2 * * *", "UTC")
NOW = datetime(2026, 3, 20, 12, tzinfo=UTC)


def times(expression, zone, since, count):
    """Return the times after a day, in the zone."""
    table = Timetable(expression, zone)
    begin = datetime.fromisoformat(since).replace(tzinfo=ZoneInfo(zone))
    return [f"{table.local(time):%d %H:%M %z}" for time in islice(table.after(begin), count)]


@pytest.mark.parametrize(
    ("expression", "zone", "since", "fires"),
    [
        # 02:00 is 03:00: what is skipped fires once, when the clock goes on.
        ("30 2 * * *", BERLIN, "2026-03-29", ["29 03:00 +0200", "30 02:30 +0200"]),
        ("0,30 2,3 * * *", BERLIN, "2026-03-29", ["29 03:00 +0200", "29 03:30 +0200"]),
        # 03:00 is 02:00: what is repeated fires the first time.
        ("30 2 * * *", BERLIN, "2026-10-25", ["25 02:30 +0200", "26 02:30 +0100"]),
        ("*/30 2 * * *", BERLIN, "2026-10-25", ["25 02:00 +0200", "25 02:30 +0200"]),
        # Every hour is every hour that passes.
        ("0 * * * *", BERLIN, "2026-03-29T00:30", ["29 01:00 +0100", "29 03:00 +0200"]),
        ("30 * * * *", BERLIN, "2026-10-25T02:10", ["25 02:30 +0200", "25 02:30 +0100"]),
        # Half an hour, and at midnight.
        ("15 2 * * *", LORD_HOWE, "2026-10-04", ["04 02:30 +1100", "05 02:15 +1100"]),
        ("45 1 * * *", LORD_HOWE, "2026-04-05", ["05 01:45 +1100", "06 01:45 +1030"]),
        ("*/30 * * * *", LORD_HOWE, "2026-04-05T01:20", ["05 01:30 +1100", "05 01:30 +1030"]),
        ("0 0 * * *", SANTIAGO, "2026-09-05T12:00", ["06 01:00 -0300", "07 00:00 -0300"]),
        ("0 2 * * *", "UTC", "2026-03-29", ["29 02:00 +0000", "30 02:00 +0000"]),
        ("0 0 L 2 *", "UTC", "2028-02-01", ["29 00:00 +0000"]),
    ],
)
def test_what_a_change_of_the_clock_skips_or_repeats_fires_once(expression, zone, since, fires):
    """A skipped time fires when the clock goes on, a repeated one the first time."""
    assert times(expression, zone, since, len(fires)) == fires


@pytest.mark.parametrize(
    ("minutes", "hours"),
    [("*/15", "*"), ("5,20,59", "1,2,3"), ("0", "0"), ("30", "2-23/3"), ("*/20", "2")],
)
@pytest.mark.parametrize("zone", [BERLIN, LORD_HOWE, SANTIAGO])
def test_the_times_are_those_that_a_clock_shows(zone, minutes, hours):
    """From wherever one asks, the times of days of changes are what watching the clock gives."""
    table = Timetable(f"{minutes} {hours} * * *", zone)
    named = {(hour, minute) for hour in _numbers(hours, 24) for minute in _numbers(minutes, 60)}
    for begin in ("2026-03-28", "2026-04-04", "2026-09-05", "2026-10-03", "2026-10-24"):
        start = datetime.fromisoformat(begin).replace(tzinfo=UTC)
        expected = list(_watched(zone, named, hours != "*", start, 48 * 60))
        end = start + 2 * DAY
        for since in range(0, 48 * 60, 611):
            asked = start + since * MINUTE
            found = islice(table.after(asked - timedelta(seconds=1)), len(expected) + 1)
            wanted = [time for time in expected if time >= asked]
            assert [time for time in found if time < end] == wanted


def _numbers(field, end):
    """Return the numbers that a field stands for."""
    first, _, step = field.partition("/")
    low, _, high = first.partition("-")
    if field[0] == "*" or step:
        begin = 0 if low == "*" else int(low)
        return range(begin, int(high or end - 1) + 1, int(step or 1))
    return [int(one) for one in field.split(",")]


def _watched(zone, named, once, start, minutes):
    """Give the times at which a clock shows what is wanted, or has gone on past it."""
    shown = set()
    before = (start - 3 * 60 * MINUTE).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    for n in range(-3 * 60, minutes):
        time = start + n * MINUTE
        wall = time.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        fires = (wall.hour, wall.minute) in named and not (once and wall in shown)
        skipped = before + MINUTE
        while once and skipped < wall:
            fires = fires or (skipped.hour, skipped.minute) in named
            skipped += MINUTE
        shown.add(wall)
        before = wall
        if fires and n >= 0:
            yield time


@pytest.mark.parametrize(
    ("reached", "missed", "tick", "sent"),
    [
        (NOW - timedelta(hours=9), "all", None, False),
        (NOW - timedelta(hours=11), "latest", 20, True),
        (NOW - 3 * DAY, "latest", 20, True),
        (NOW - 400 * DAY, "latest", 20, True),
        (NOW - 3 * DAY, "all", 18, True),
        (NOW - 3 * DAY, "none", 20, False),
    ],
)
def test_missed_ticks_are_sent_as_declared(reached, missed, tick, sent):
    """Of several that are due the last is sent, the first, or none."""
    due = due_tick(NIGHTLY, missed, reached, NOW)
    assert (due.time and due.time.day, due.is_sent) == (tick, sent)
    assert due.next > NOW or missed == "all"


def test_a_tick_is_missed_after_a_minute_unless_it_was_begun():
    """Without missed ticks, one that was seen in time is sent, and its attempts go on."""
    tick = NOW.replace(hour=2)
    for late, attempted, sent in [
        (LATE, None, True),
        (LATE + MINUTE, None, False),
        (LATE + MINUTE, tick, True),
        (LATE + MINUTE, tick - DAY, False),
    ]:
        due = due_tick(NIGHTLY, "none", tick - MINUTE, tick + late, attempted)
        assert (due.time, due.is_sent) == (tick, sent)
        assert due.missed == (None if sent else tick)


@pytest.mark.parametrize("missed", ["latest", "none"])
@pytest.mark.parametrize(
    ("reached", "seen", "day", "left_out"),
    [(15, 17, 18, 16), (17, 15, 18, None), (15, 20, 20, 16), (15, 21, 20, 16)],
)
def test_a_tick_is_not_missed_by_a_process_that_has_seen_to_those_before(
    missed, reached, seen, day, left_out
):
    """The next one is due, however late; if all were seen, the last is, if it was not missed."""
    due = due_tick(NIGHTLY, missed, at(reached), NOW, at(20, 2), at(seen))
    assert (due.time, due.is_sent) == (at(day, 2), True)
    assert due.missed == (left_out and at(left_out, 2))


def at(day, hour=12):
    """Return a time in the month of NOW."""
    return NOW.replace(day=day, hour=hour)


def test_a_rare_tick_is_found_after_years():
    """The last of few ticks is found wherever it is, and the one after it."""
    leap = Timetable("0 0 29 2 *", "UTC")
    due = due_tick(leap, "latest", datetime(2019, 1, 1, tzinfo=UTC), NOW)
    assert (due.time.year, due.missed.year, due.next.year) == (2024, 2020, 2028)


@pytest.mark.parametrize(
    ("problem", "expression", "zone"),
    [
        ("never fires: no such month has that day", "0 0 31 2 *", "UTC"),
        ("never fires: there is no such day", "0 0 */31 * MON#2", "UTC"),
        ("there are no seconds", "0 0 2 * * *", "UTC"),
        ("no cron expression: wrong number of fields", "@daily", "UTC"),
        ("no cron expression: wrong number of fields", "", "UTC"),
        ("no cron expression: bad minute", "60 * * * *", "UTC"),
        ("no cron expression", "9" * 5000 + " * * * *", "UTC"),
        ("no cron expression", None, "UTC"),
        ("no cron expression", 5, "UTC"),
        ("no known time zone", "0 2 * * *", "Europe/Bern1"),
        ("no known time zone", "0 2 * * *", "Europe"),
        ("no known time zone", "0 2 * * *", "../etc/passwd"),
        ("no known time zone", "0 2 * * *", None),
        ("no known time zone", "0 2 * * *", ""),
    ],
)
def test_what_is_no_timetable_is_refused_in_one_line(problem, expression, zone):
    """What cannot be parsed, and what never comes, is named in one line."""
    with pytest.raises(ValueError, match=problem) as refused:
        Timetable(expression, zone)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 250
