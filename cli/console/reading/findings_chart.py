"""The findings of the last reconciliations as bars, one for each, divided by kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from reservation.maintenance.stored_reports import StoredReport
from spark_jobs.report.words import KINDS

WIDTH, HEIGHT = 960, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 12, 28

# Pixels of a bar at most, and between two of them.
_WIDEST, _GAP = 28, 2

# How many bars fit side by side on a wide screen.
MOST = 90


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of findings in a bar.

    Attributes:
        kind: the number of the kind, by which it has its colour.
        y: the upper edge.
        height: in pixels.
    """

    kind: int
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One reconciliation.

    Attributes:
        x: the left edge.
        width: in pixels.
        parts: from below.
        title: when it was, and what it found.
    """

    x: float
    width: float
    parts: Sequence[Part]
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """The bars, with what explains them.

    Attributes:
        bars: the first one first.
        ticks: the y of lines across, each with its number of findings.
        kinds: the kinds that occur: number and title.
        first, last: when the first and the last reconciliation were.
        summary: what the chart shows, in a sentence.
    """

    bars: Sequence[Bar]
    ticks: Sequence[tuple[float, int]]
    kinds: Sequence[tuple[int, str]]
    first: datetime
    last: datetime
    summary: str
    width: int = WIDTH
    height: int = HEIGHT


def chart(reports: Sequence[StoredReport]) -> Chart | None:
    """Return the chart of some reports; None if there are fewer than two.

    Args:
        reports: the first one first.
    """
    if len(reports) < 2:
        return None
    totals = [sum(count for _, count in _found(report)) for report in reports]
    top = _round_up(max(totals))
    base, scale = HEIGHT - _BOTTOM, (HEIGHT - _TOP - _BOTTOM) / top
    step = min((WIDTH - _LEFT - _RIGHT) / len(reports), _WIDEST + _GAP)
    bars = [
        Bar(
            round(_LEFT + number * step, 1),
            round(max(step - _GAP, 1), 1),
            _parts(report, base, scale),
            _title(report),
        )
        for number, report in enumerate(reports)
    ]
    occur = {kind for report in reports for kind, _ in _found(report)}
    worst = max(totals)
    return Chart(
        bars,
        [(round(base - count * scale, 1), count) for count in sorted({0, top // 2, top})],
        [(number, kind.title) for number, kind in enumerate(KINDS) if number in occur],
        reports[0].time,
        reports[-1].time,
        f"{len(reports)} reconciliations: {totals[-1]:,} findings in the last one, {worst:,} at "
        f"most. The table below has the numbers.",
    )


def found(report: StoredReport) -> list[tuple[str, int]]:
    """Return the titles of the kinds that a report has findings of, each with their number."""
    return [(KINDS[number].title, count) for number, count in _found(report)]


def _found(report: StoredReport) -> list[tuple[int, int]]:
    counts = ((n, int(report.findings.get(kind.name, 0))) for n, kind in enumerate(KINDS))
    return [(number, count) for number, count in counts if count]


def _parts(report: StoredReport, base: float, scale: float) -> list[Part]:
    parts, y = [], base
    for kind, count in _found(report):
        y -= count * scale
        parts.append(Part(kind, round(y, 1), round(max(count * scale, 1), 1)))
    return parts


def _title(report: StoredReport) -> str:
    listed = ", ".join(f"{title.lower()} {count:,}" for title, count in found(report))
    return f"{report.time:%Y-%m-%d %H:%M} UTC: {listed or 'no findings'}"


def _round_up(count: int) -> int:
    """Return the next of 2, 4, 10, 20, 40, 100 and so on, which a line in the middle divides."""
    magnitude = 1
    while True:
        for first in (2, 4, 10):
            if count <= first * magnitude:
                return first * magnitude
        magnitude *= 10
