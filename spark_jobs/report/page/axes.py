"""Hours combined into buckets that can be drawn, and the ticks of an axis."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR = timedelta(hours=1)

# How many hours a bucket may have: parts of a day, days, weeks, and then twice as many each.
_STEPS = (1, 2, 3, 6, 12, 24, 48, 168)
# The least span of an axis, so that a single hour does not fill it.
_LEAST = 12


@dataclass(frozen=True, slots=True)
class Buckets:
    """Spans of equal length that hours are put into.

    Attributes:
        hours: how many hours each spans.
        first: the number of the first one, counted from 1970.
        count: how many there are on the axis.
    """

    hours: int
    first: int
    count: int

    @classmethod
    def of(cls, times: Iterable[datetime], most: int) -> "Buckets":
        """Return buckets for all of these times, of which there is at least one."""
        numbers = [hour_number(time) for time in times]
        low, high = min(numbers), max(numbers)
        hours = next(step for step in _steps() if high // step - low // step < most)
        first, count = low // hours, high // hours - low // hours + 1
        missing = max(0, _LEAST - count)
        return cls(hours, first - missing // 2, count + missing)

    def number(self, time: datetime) -> int:
        """Return which bucket a time falls into, counted from 0."""
        return hour_number(time) // self.hours - self.first

    def start(self, number: int) -> datetime:
        """Return when a bucket begins."""
        return _EPOCH + (self.first + number) * self.hours * _HOUR

    def place(self, time: datetime) -> float:
        """Return where a time is: 0 where the first bucket begins, 1 where the last one ends."""
        since = (time - self.start(0)) / (self.hours * _HOUR)
        return since / self.count

    def __str__(self) -> str:
        """Return the time span of a bucket, in words."""
        if self.hours == 1:
            return "hour"
        if self.hours == 24:
            return "day"
        if self.hours == 168:
            return "week"
        if self.hours % 168 == 0:
            return f"{self.hours // 168} weeks"
        return f"{self.hours // 24} days" if self.hours % 24 == 0 else f"{self.hours} hours"


def hour_number(time: datetime) -> int:
    """Return how many hours after the beginning of 1970 a time is; without a zone it is UTC."""
    return (time - _EPOCH) // _HOUR


def time_ticks(buckets: Buckets, most: int) -> Sequence[tuple[float, str]]:
    """Return at most this many ticks: where they are, from 0 to 1, and what they say."""
    start, end = buckets.start(0), buckets.start(buckets.count)
    for months in (1, 2, 3, 6, 12, 24, 60, 120):
        by_days = (end - start) / timedelta(days=1) <= most * 14
        times = list(_by_step(start, end, most)) if by_days else list(_by_month(start, end, months))
        if len(times) <= most:
            break
    return [(buckets.place(time), _label(time, by_days)) for time in times]


def count_ticks(highest: float, most: int = 4) -> Sequence[int]:
    """Return round numbers from 0 to at least this one."""
    raw = max(highest, 1) / most
    size = 10 ** math.floor(math.log10(raw)) if raw >= 1 else 1
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    return [int(step * number) for number in range(math.ceil(max(highest, 1) / step) + 1)]


def duration_ticks(lowest: float, highest: float) -> Sequence[float]:
    """Return the times in seconds at which a logarithmic axis is divided; the ends are its own."""
    ladder = [10.0**power for power in range(-6, 2)] + [60.0, 600.0, 3600.0]
    ladder += [6 * 3600.0] + [86400.0 * 10**power for power in range(5)]
    low = max((step for step in ladder if step <= lowest), default=ladder[0])
    high = min((step for step in ladder if step >= highest), default=ladder[-1])
    if low == high:
        high = next((step for step in ladder if step > low), low * 10)
    between = [step for step in ladder if low <= step <= high]
    every = math.ceil(len(between) / 7)
    return sorted({*between[::every], low, high})


def _steps() -> Iterator[int]:
    yield from _STEPS
    step = _STEPS[-1]
    while True:
        step *= 2
        yield step


def _by_step(start: datetime, end: datetime, most: int) -> Iterator[datetime]:
    """Yield times at equal distances of hours or days."""
    for hours in (1, 3, 6, 12, 24, 48, 168, 336):
        first = -(-(start - _EPOCH) // (hours * _HOUR))
        last = (end - _EPOCH) // (hours * _HOUR)
        if last - first < most:
            break
    for number in range(first, last + 1):
        yield _EPOCH + number * hours * _HOUR


def _by_month(start: datetime, end: datetime, months: int) -> Iterator[datetime]:
    """Yield the beginnings of months."""
    month = -(-(start.year * 12 + start.month) // months) * months
    while True:
        time = datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC)
        if time > end:
            return
        yield time
        month += months


def _label(time: datetime, by_days: bool) -> str:
    if not by_days:
        return f"{time:%Y}" if time.month == 1 else f"{time:%b}"
    return f"{time.day} {time:%b}" if time.hour == 0 else f"{time:%H:%M}"
