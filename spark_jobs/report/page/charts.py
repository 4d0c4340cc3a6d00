"""The pictures of what happened over time, and of who sends again."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from spark_jobs.common.result import Latency, Sender, Volume
from spark_jobs.report.page.axes import Buckets, count_ticks, duration_ticks, time_ticks
from spark_jobs.report.page.svg import add, drawing
from spark_jobs.report.words import compact, duration, share, shortened, shown

_SHORTEST = 1e-6  # seconds; a logarithmic axis has no 0
_QUANTILES = ("p99", "p95", "p50")
_BARS = 12


@dataclass(frozen=True, slots=True)
class _Frame:
    """The inner part of a picture with axes, in pixels."""

    width: float
    height: float
    left: float = 52
    right: float = 12
    top: float = 14
    bottom: float = 26
    ticks: int = 9

    def x(self, place: float) -> float:
        return self.left + place * (self.width - self.left - self.right)

    def y(self, place: float) -> float:
        """Return the height of a value between 0, at the bottom, and 1."""
        return self.height - self.bottom - place * (self.height - self.top - self.bottom)


def _frame(narrow: bool, right: float = 12) -> _Frame:
    return _Frame(360, 210, right=right, ticks=4) if narrow else _Frame(960, 250, right=right)


def _buckets_wanted(narrow: bool) -> int:
    return 60 if narrow else 150


def draw_latency(latency: Sequence[Latency], title: str, *, narrow: bool = False) -> Element:
    """Return the quantiles of one stage over time, on a logarithmic axis."""
    timed = [(measured.hour, measured) for measured in latency if measured.hour is not None]
    buckets = Buckets.of((hour for hour, _ in timed), _buckets_wanted(narrow))
    lines: dict[str, dict[int, float]] = {name: {} for name in _QUANTILES}
    for hour, one in timed:
        for name in _QUANTILES:
            value = max(getattr(one, name), _SHORTEST)
            if math.isfinite(value):
                line, number = lines[name], buckets.number(hour)
                line[number] = max(value, line.get(number, value))
    values = [value for line in lines.values() for value in line.values()] or [1.0]
    ticks = duration_ticks(min(values), max(values))
    low, high = math.log(ticks[0]), math.log(ticks[-1])
    frame = _frame(narrow, right=38)

    def height(value: float) -> float:
        return frame.y((math.log(value) - low) / (high - low))

    worst = ", ".join(f"{name} {duration(max(lines[name].values()))}" for name in _QUANTILES[::-1])
    picture = _with_axes(
        frame,
        title,
        f"Quantiles for each {buckets} of {_span(buckets)}. The highest: {worst}.",
        buckets,
        [(height(tick), duration(tick)) for tick in ticks],
        narrow,
    )
    labelled: list[float] = []
    for name in _QUANTILES:
        points = {
            number: (frame.x((number + 0.5) / buckets.count), height(value))
            for number, value in sorted(lines[name].items())
        }
        _draw_line(picture, points, name)
        if points:
            x, y = points[max(points)]
            if labelled:
                y = max(y, labelled[-1] + 14)
            labelled.append(y)
            add(picture, "text", name, x=x + 8, y=y + 4, class_=f"name {name}")
    return picture


def _draw_line(picture: Element, points: dict[int, tuple[float, float]], class_: str) -> None:
    """Draw a line that is broken at missing values; a single value is a dot."""
    numbers = list(points)
    line = ""
    for number in numbers:
        x, y = points[number]
        line += f"{'L' if number - 1 in points else 'M'}{x:.1f},{y:.1f}"
        if number - 1 not in points and number + 1 not in points:
            add(picture, "circle", cx=x, cy=y, r=3.0, class_=f"dot {class_}")
    add(picture, "path", d=line, class_=f"line {class_}")


def draw_volume(volume: Sequence[Volume], *, narrow: bool = False) -> Element:
    """Return the number of commands over time, and what became of them, as stacked bars."""
    buckets = Buckets.of((hourly.hour for hourly in volume), _buckets_wanted(narrow))
    sums: dict[int, list[int]] = {}
    for hourly in volume:
        handled, duplicates = hourly.handled, hourly.duplicates
        rest = max(0, hourly.commands - handled - duplicates)
        counts = sums.setdefault(buckets.number(hourly.hour), [0, 0, 0])
        for n, count in enumerate((handled, duplicates, rest)):
            counts[n] += count
    ticks = count_ticks(max(sum(counts) for counts in sums.values()))
    frame = _frame(narrow)
    picture = _with_axes(
        frame,
        f"Commands sent, by {buckets}",
        f"{sum(hourly.commands for hourly in volume):,} commands in {_span(buckets)}: "
        f"{sum(hourly.handled for hourly in volume):,} handled, "
        f"{sum(hourly.duplicates for hourly in volume):,} duplicates.",
        buckets,
        [(frame.y(tick / ticks[-1]), compact(tick)) for tick in ticks],
        narrow,
    )
    step = frame.x(1 / buckets.count) - frame.x(0)
    gap = min(2.0, step / 5)
    for number, counts in sorted(sums.items()):
        below = 0
        bar = add(picture, "g")
        parts = (f"{count:,} {name}" for count, name in zip(counts, _PARTS, strict=True) if count)
        add(bar, "title", f"{buckets.start(number):%Y-%m-%d %H:%M}: {', '.join(parts)}")
        for count, class_ in zip(counts, _PARTS, strict=True):
            if count:
                high, low = (frame.y(at / ticks[-1]) for at in (below + count, below))
                x = frame.x(number / buckets.count) + gap / 2
                add(
                    bar,
                    "rect",
                    x=x,
                    y=high,
                    width=f"{step - gap:.2f}",
                    height=f"{max(low - high, 0.7):.2f}",
                    class_=f"part {class_}",
                )
            below += count
    return picture


# What a bar of the volume is made of, from the bottom.
_PARTS = ("handled", "duplicate", "other")


def _with_axes(
    frame: _Frame,
    title: str,
    description: str,
    buckets: Buckets,
    heights: Iterable[tuple[float, str]],
    narrow: bool,
) -> Element:
    """Return an empty picture with its axes; the labels are by their heights in pixels."""
    class_ = f"chart {'narrow' if narrow else 'wide'}"
    picture = drawing(frame.width, frame.height, title, description, class_)
    for y, text in heights:
        add(
            picture,
            "line",
            x1=frame.left,
            x2=frame.width - frame.right,
            y1=y,
            y2=y,
            class_="grid",
        )
        add(picture, "text", text, x=frame.left - 8, y=y + 4, text_anchor="end", class_="tick")
    for place, text in time_ticks(buckets, frame.ticks):
        x = frame.x(place)
        bottom = frame.y(0)
        add(picture, "line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="grid")
        anchor = "start" if place < 0.02 else "end" if place > 0.98 else "middle"
        add(picture, "text", text, x=x, y=bottom + 18, text_anchor=anchor, class_="tick")
    return picture


def _span(buckets: Buckets) -> str:
    first, last = buckets.start(0), buckets.start(buckets.count)
    return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"


def draw_senders(senders: Sequence[Sender]) -> Element:
    """Return who sent how many duplicates, the most first, and the rest in one bar."""
    duplicates: dict[str | None, int] = {}
    commands: dict[str | None, int] = {}
    for sender in senders:
        duplicates[sender.sender] = duplicates.get(sender.sender, 0) + sender.duplicates
        commands[sender.sender] = commands.get(sender.sender, 0) + sender.commands
    order: Callable[[str | None], tuple[int, str]] = lambda who: (-duplicates[who], who or "")  # noqa: E731
    ranked = sorted(duplicates, key=order)
    bars = [
        (
            "sender not named" if who is None else shown(who),
            duplicates[who],
            commands[who],
        )
        for who in ranked[:_BARS]
    ]
    others = ranked[_BARS:]
    if others:
        rest = sum(duplicates[who] for who in others), sum(commands[who] for who in others)
        bars.append((f"{len(others):,} others", *rest))
    most = max(1, *(count for _, count, _ in bars))
    picture = drawing(
        640,
        44.0 * len(bars),
        "Duplicates by sender",
        "; ".join(f"{shortened(name, 60)}: {count:,}" for name, count, _ in bars) + ".",
        "senders",
    )
    for number, (name, count, sent) in enumerate(bars):
        y = 44.0 * number
        row = add(picture, "g")
        add(row, "title", f"{name}: {count:,} of {sent:,} commands")
        add(row, "text", shortened(name, 44), x=0, y=y + 15, class_="name")
        said = f"{count:,} · {share(count, sent)}" if sent else f"{count:,}"
        add(row, "text", said, x=640, y=y + 15, class_="count", text_anchor="end")
        add(row, "rect", x=0, y=y + 23, width=640, height=9, rx=2, class_="track")
        if count:
            width = f"{max(640 * count / most, 3):.1f}"
            add(row, "rect", x=0, y=y + 23, width=width, height=9, rx=2, class_="bar")
    return picture
